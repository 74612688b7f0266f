"""Calls of code tools: what the model is told, what is not run twice, and what is missing."""

from __future__ import annotations

import asyncio
import json

import pytest

from inference.tools.code.code_tools import CodeTools, bounds_of, result_of
from inference.tools.code.run_files import FilledFolder, KeptFiles
from inference.tools.code.sandbox_pool import Kind, SandboxResult, SandboxUnavailable, find_kind
from inference.tools.tools_file import CodeTool
from sessions.model.types import CallId, ResponseId, RunFile, SessionId, SessionKey, TenantId
from sessions.server_tools import ToolRequest

TOOL = CodeTool(timeout_s=5, memory_mb=128)
KEPT = KeptFiles((RunFile(file_id="f", path="a.csv", size=3),), ("b",), "no room")
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
    ("result", "kept", "outcome", "text"),
    [
        (SandboxResult(0, "", "a\n"), KeptFiles(), "done", "a"),
        (SandboxResult(1, "", "Traceback"), KeptFiles(), "failed", "Traceback"),
        (SandboxResult(0, "", ""), KEPT, "done", "[files: a.csv (3 bytes)]\n[files that are not kept: b; no room]\n"),
        (SandboxResult(0, "", "a", dropped=9), KeptFiles(), "done", "a\n[cut off at 65536 bytes]"),
        (SandboxResult(-1, "memory", "a"), KeptFiles(), "failed", "a\n[stopped: it used more than 128 MB of memory"),
        (SandboxResult(-1, "time", ""), KeptFiles(), "failed", "[stopped: it took longer than 5 s"),
    ],
)
def test_what_the_model_is_told(result: SandboxResult, kept: KeptFiles, outcome: str, text: str) -> None:
    answer = result_of(result, FilledFolder({}, ("big.csv",)), kept, TOOL)
    assert answer.outcome == outcome and answer.output.startswith(text) and answer.files == kept.files
    assert answer.output.endswith(
        "[files that were not in the folder: big.csv; they have no room there, or cannot be read]"
    )


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
        code = "open('a', 'w').write('x')\nimport random\nrandom.random()"
        first = await tools.call(request(code), TOOL)
        assert await tools.call(request(code), TOOL) == first and first.outcome == "done"
        assert first.output.endswith("[files that are not kept: a; this server stores none]")
        assert await tools.call(request(code, "other"), TOOL) != first
        running = asyncio.create_task(tools.call(request("while True:\n    pass", "third"), TOOL))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (await tools.call(request("1", "fourth"), TOOL)).output == "1"
    finally:
        await tools.close()
