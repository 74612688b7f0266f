"""Code of models that wants out of its sandbox: 72 attempts through the Responses door of a server, none gets anything.

Those that must not read, write, reach or stop something print ESCAPED where they could; those that take more than they
were given are ended. Afterwards nothing of them runs, and what was planted is as it was.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
from openai.types.responses import ResponseCodeInterpreterToolCall
from openai.types.responses.response_code_interpreter_tool_call import OutputLogs

from inference.simulated import SimulatedOptions
from inference.tools.code.sandbox_pool import SandboxUnavailable, find_kind
from inference.tools.code.supervisor import descendants
from tests.support.doors.openai_server import SIMULATED, Serving, serving
from tests.support.doors.tool_service import opened_tools
from tests.support.sandbox.escapes import ESCAPES, EXHAUSTING
from tests.support.sandbox.escapes_second import ESCAPES_SECOND

pytestmark = [pytest.mark.timeout(300)]
CODE: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
SECRET = "hidden-from-code-4711"
TOOLS = """
[tools.code_interpreter]
kind = "code"
timeout_s = 4
cpu_s = 3
memory_mb = 256
disk_mb = 16
files = 64
"""


class Planted(NamedTuple):
    """What attempts go for."""

    places: dict[str, str]
    listeners: list[socket.socket]
    canary: subprocess.Popen[bytes]

    def untouched(self) -> bool:
        """Nobody has connected, and nothing was ended."""
        for listener in self.listeners:
            try:
                listener.accept()
            except BlockingIOError:
                continue
            return False
        return (
            self.canary.poll() is None and not Path("/dev/shm/escaped").exists() and not Path("/tmp/escaped").exists()
        )


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planted]:
    monkeypatch.setenv("SESSILE_TEST_SECRET", SECRET)
    (tmp_path / "secret").write_text(SECRET)
    listeners = [socket.socket(), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    listeners[0].bind(("127.0.0.1", 0))
    listeners[1].bind(path := f"/tmp/sessile-attack-{os.getpid()}")
    listeners[2].bind(f"\0sessile-attack-{os.getpid()}")
    for listener in listeners:
        listener.listen()
        listener.setblocking(False)
    canary = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    places = {
        "file": str(tmp_path / "secret"),
        "port": str(listeners[0].getsockname()[1]),
        "socket": path,
        "abstract": f"sessile-attack-{os.getpid()}",
        "canary": str(canary.pid),
        "server": str(os.getpid()),
        "neighbour": str(tmp_path),
    }
    try:
        yield Planted(places, listeners, canary)
    finally:
        canary.kill()
        canary.wait()
        for listener in listeners:
            listener.close()
        Path(path).unlink()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Serving]:
    try:
        find_kind()
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox here: {error}")
    async with (
        opened_tools(tmp_path / "tools.toml", TOOLS) as tools,
        serving(SimulatedOptions(step_base_s=0.0005), tools=tools) as made,
    ):
        yield made


@pytest.fixture
async def client(server: Serving) -> AsyncIterator[openai.AsyncOpenAI]:
    async with server.client() as made:
        yield made


async def logs_of(client: openai.AsyncOpenAI, server: Serving, code: str) -> str:
    """What code says that a model writes."""
    call = {"name": "code_interpreter", "arguments": {"code": code}}
    server.engine.script += [f"<tool_call>\n{json.dumps(call)}\n</tool_call>", "Done."]
    done = await client.responses.create(model=SIMULATED, input="run it", tools=[CODE])
    (ran,) = [item for item in done.output if isinstance(item, ResponseCodeInterpreterToolCall)]
    assert ran.outputs is not None
    (logs,) = ran.outputs
    assert isinstance(logs, OutputLogs)
    return str(logs.logs)


def filled(code: str, planted: Planted) -> str:
    for name, value in planted.places.items():
        code = code.replace("{" + name + "}", value)
    return code.replace("{{", "{").replace("}}", "}")


async def test_nothing_gets_out(client: openai.AsyncOpenAI, server: Serving, planted: Planted) -> None:
    assert len(ESCAPES) + len(ESCAPES_SECOND) == 60 and len(ESCAPES_SECOND) == 20
    through = {}
    for name, code in {**ESCAPES, **ESCAPES_SECOND}.items():
        said = await logs_of(client, server, filled(code, planted))
        if "ESCAPED" in said or SECRET in said or "tool_unavailable" in said:
            through[name] = said
    assert not through
    assert planted.untouched()


async def test_nothing_takes_more_than_it_was_given(
    client: openai.AsyncOpenAI, server: Serving, planted: Planted
) -> None:
    for name, code in EXHAUSTING.items():
        said = await logs_of(client, server, code)
        assert "ESCAPED" not in said and "tool_unavailable" not in said and len(said) <= 70_000, (name, said[-500:])
    assert await logs_of(client, server, "1 + 1") == "2", "the next one runs"
    assert planted.untouched()


async def test_nothing_runs_on_when_the_server_is_gone(tmp_path: Path, planted: Planted) -> None:
    async with (
        opened_tools(tmp_path / "tools.toml", TOOLS) as tools,
        serving(SimulatedOptions(step_base_s=0.0005), tools=tools) as server,
        server.client() as client,
    ):
        assert await logs_of(client, server, EXHAUSTING["leaves a process behind"]) == "left"
        call = {"name": "code_interpreter", "arguments": {"code": "while True:\n    pass"}}
        server.engine.script.append(f"<tool_call>\n{json.dumps(call)}\n</tool_call>")
        begun = await client.responses.create(model=SIMULATED, input="x", tools=[CODE], background=True)
        await client.responses.cancel(begun.id)
    below = [pid for pid in descendants(os.getpid()) if b"bootstrap.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert below == []
