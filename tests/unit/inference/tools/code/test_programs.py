"""Programs from call to call: on from a snapshot, run again where that is of no use, and what they cannot do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from inference.tools.code.programs import ProgramInterpreter, open_interpreter
from inference.tools.tools_file import CodeTool
from sessions.model.types import CallId, ProgramPoint, ResponseId, SessionId, SessionKey, TenantId
from sessions.server_tools import ProgramCall, ProgramStep, ProgramSuspended, ToolRequest, ToolResult

TOOL = CodeTool(interpreter="program", timeout_s=1, memory_mb=64)
KEY = SessionKey(TenantId("t"), SessionId("s"))
FIVE = """
import random
seen = []
for index in range(5):
    print('call', index)
    seen.append(look(index, why=random.randint(0, 10**6))['n'])
sum(seen)
"""


@pytest.fixture
async def interpreter() -> AsyncIterator[ProgramInterpreter]:
    async with open_interpreter() as made:
        if made.missing:
            pytest.skip(made.missing)
        yield made


def step(code: str, done: tuple[ProgramCall, ...] = (), point: ProgramPoint | None = None) -> ProgramStep:
    request = ToolRequest(
        key=KEY,
        response_id=ResponseId("r"),
        call_id=CallId("c"),
        name="program",
        arguments=json.dumps({"code": code}),
        execution_id="call_1",
    )
    return ProgramStep(request=request, functions={"look": ("at", "why")}, done=done, point=point)


def point(at: ProgramSuspended, *, version: str = "", snapshot: bytes | None = None) -> ProgramPoint:
    held = at.snapshot if snapshot is None else snapshot
    return ProgramPoint(version=version or at.version, chain=b"", digest=b"", snapshot=held, printed=at.printed)


async def to_the_end(
    interpreter: ProgramInterpreter, code: str, *, version: str = "", snapshot: bytes | None = None
) -> tuple[list[str], ToolResult]:
    """Goes from call to call; each step begins from what the log would have."""
    done: tuple[ProgramCall, ...] = ()
    at = await interpreter.advance(step(code), TOOL)
    asked = []
    while isinstance(at, ProgramSuspended):
        asked.append(at.arguments)
        done += (ProgramCall(name=at.name, arguments=at.arguments, output=json.dumps({"n": len(done)})),)
        at = await interpreter.advance(step(code, done, point(at, version=version, snapshot=snapshot)), TOOL)
    return asked, at


async def test_snapshots_and_a_program_run_again_come_to_the_same(interpreter: ProgramInterpreter) -> None:
    asked, end = await to_the_end(interpreter, FIVE)
    assert [json.loads(each)["at"] for each in asked] == list(range(5))
    assert end == ToolResult(outcome="done", output="call 0\ncall 1\ncall 2\ncall 3\ncall 4\n10")
    assert await to_the_end(interpreter, FIVE, version="monty 0.1") == (asked, end), "of another version"
    assert await to_the_end(interpreter, FIVE, snapshot=b"damaged" * 99) == (asked, end), "unreadable"


async def test_a_program_that_makes_other_calls_the_second_time_makes_none(interpreter: ProgramInterpreter) -> None:
    other = (ProgramCall(name="look", arguments='{"at": 9}', output="{}"),)
    end = await interpreter.advance(step("look(1)", other), TOOL)
    assert isinstance(end, ToolResult) and end.outcome == "unknown"
    end = await interpreter.advance(step("1", other), TOOL)
    assert isinstance(end, ToolResult) and end.outcome == "unknown"


async def test_what_a_call_raises_the_program_may_catch(interpreter: ProgramInterpreter) -> None:
    code = "try:\n    look(at=1)\nexcept RuntimeError as error:\n    print('caught', error)"
    failed = (ProgramCall(name="look", arguments='{"at": 1}', output="http_status 500", is_error=True),)
    assert await interpreter.advance(step(code, failed), TOOL) == ToolResult(
        outcome="done", output="caught http_status 500"
    )


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd').read()",
        "import os\nos.environ['PATH']",
        "import os\nos.system('id')",
        "import subprocess",
        "import socket",
        "import ctypes",
        "__import__('os').listdir('/')",
        "().__class__.__bases__[0].__subclasses__()",
        "(lambda: 0).__globals__",
        "(lambda: 0).__code__.co_consts",
        "eval('__import__(\"socket\")')",
        "while True:\n    pass",
        "x = 'a' * 10**10",
        "x = []\nwhile True:\n    x.append('a' * 10**6)",
        "def f():\n    return f()\nf()",
        "2 ** 10**9",
        "unknown(1)",
        "look(1, 2, 3)",
        "look(1, at=2)",
        "look(at=float('nan'))",
        "x =",
        "1 / 0",
        "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
        "for index in range(10**6):\n    print('x' * 1000)",
    ],
)
async def test_programs_have_nothing_but_their_tools(interpreter: ProgramInterpreter, code: str) -> None:
    end = await interpreter.advance(step(code), TOOL)
    assert isinstance(end, ToolResult) and len(end.output.encode()) < 2 * TOOL.result_bytes + 100
    assert end.outcome == "failed" or "cut off" in end.output or end.output == "None" or "re.match" in code
    assert "root:" not in end.output


async def test_a_program_makes_so_many_calls(interpreter: ProgramInterpreter) -> None:
    few = CodeTool(interpreter="program", calls_max=1)
    done = (ProgramCall(name="look", arguments='{"at": 1}', output="1"),)
    end = await interpreter.advance(step("look(1)\nlook(2)", done), few)
    assert isinstance(end, ToolResult) and "it made 1 calls" in end.output
