"""Calls of code tools: what the model is told, what is not run twice, and what is missing."""

from __future__ import annotations

import asyncio
import json

import pytest

from inference.tools.code.code_tools import CodeTools, bounds_of, result_of
from inference.tools.code.sandbox_pool import Kind, SandboxResult, SandboxUnavailable, find_kind
from inference.tools.code.scratch import ScratchFile
from inference.tools.tools_file import CodeTool
from sessions.model.types import CallId, ResponseId, SessionId, SessionKey, TenantId
from sessions.server_tools import ToolRequest

TOOL = CodeTool(timeout_s=5, memory_mb=128)
KEY = SessionKey(TenantId("t"), SessionId("s"))


def request(code: str, name: str = "e") -> ToolRequest:
    return ToolRequest(
        key=KEY,
        response_id=ResponseId("r"),
        call_id=CallId("c"),
        name="code_interpreter",
        arguments=json.dumps({"code": code}),
        execution_id=name,
    )


@pytest.mark.parametrize(
    ("result", "written", "outcome", "text"),
    [
        (SandboxResult(0, "", "a\n"), [], "done", "a"),
        (SandboxResult(1, "", "Traceback"), [], "failed", "Traceback"),
        (SandboxResult(0, "", ""), [ScratchFile("a.csv", 3)], "done", "[files: a.csv (3 bytes)]"),
        (SandboxResult(0, "", "a", dropped=9), [], "done", "a\n[cut off at 65536 bytes]"),
        (SandboxResult(-1, "memory", "a"), [], "failed", "a\n[stopped: it used more than 128 MB of memory"),
        (SandboxResult(-1, "time", ""), [], "failed", "[stopped: it took longer than 5 s"),
    ],
)
def test_what_the_model_is_told(result: SandboxResult, written: list[ScratchFile], outcome: str, text: str) -> None:
    said = result_of(result, written, TOOL)
    assert said.outcome == outcome and said.output.startswith(text)


async def test_without_a_sandbox_the_tool_says_why() -> None:
    def none() -> Kind:
        raise SandboxUnavailable("there is no bubblewrap (bwrap)")

    tools = CodeTools(find=none)
    assert tools.missing(TOOL) == "there is no bubblewrap (bwrap)"
    assert (await tools.call(request("1"), TOOL)).outcome == "not_sent"
    tools.keep_ready({bounds_of(TOOL): 1})
    await tools.close()


async def test_a_network_needs_the_sandbox_that_can_bound_it() -> None:
    tools = CodeTools(find=lambda: "bubblewrap")
    assert "sandlock" in tools.missing(CodeTool(network=("example.com:443",))) and not tools.missing(TOOL)
    await tools.close()


async def test_a_call_that_is_made_again_is_not_run_again() -> None:
    try:
        find_kind()
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox here: {error}")
    tools = CodeTools()
    try:
        code = "open('a', 'a').write('x')\nlen(open('a').read())"
        first = await tools.call(request(code), TOOL)
        assert await tools.call(request(code), TOOL) == first and first.output.startswith("1")
        assert (await tools.call(request(code, "other"), TOOL)).output.startswith("2")
        running = asyncio.create_task(tools.call(request("while True:\n    pass", "third"), TOOL))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (await tools.call(request("open('a').read()", "fourth"), TOOL)).output == "'xx'"
    finally:
        await tools.close()
