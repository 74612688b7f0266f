"""Sandboxes of code: what is in them, what their processes may, and how they end."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inference.tools.code.bootstrap import run
from inference.tools.code.code_tools import CodeTools, result_of
from inference.tools.code.run_files import FilledFolder, KeptFiles
from inference.tools.code.sandbox_pool import (
    Kind,
    SandboxPool,
    SandboxResult,
    SandboxUnavailable,
    find_interpreter,
    find_kind,
    spec_of,
)
from inference.tools.code.supervisor import cpu_and_threads, descendants, disk_usage, receive, send
from inference.tools.code.syscall_filter import CALLS, MACHINES, filter_program
from inference.tools.tools_file import CodeTool
from sessions.model.types import CallId, ResponseId, RunFile, SessionId, SessionKey, TenantId
from sessions.server_tools import ToolRequest


# -- bootstrap
@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("1 + 1", 0, "2\n"),
        ("x = 3\nprint('a')\nx * 7", 0, "a\n21\n"),
        ("None", 0, ""),
        ("", 0, ""),
        ("import sys\nsys.exit(3)", 3, ""),
        ("raise SystemExit", 0, ""),
        ("def f():\n    return __name__\nf()", 0, "'__main__'\n"),
        ("def f(x: int): ...\nf.__annotations__", 0, "{'x': <class 'int'>}\n"),
    ],
)
def test_code_runs_like_a_cell(code: str, status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(code) == status
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("code", ["1 / 0", "x =", "raise KeyboardInterrupt", "import sys\nsys.exit('no')"])
def test_what_goes_wrong_is_said_without_our_frames(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(code) == 1
    said = capsys.readouterr().err
    assert said and "bootstrap" not in said


# -- sandbox pool
BOUNDS = CodeTool(memory_mb=256, cpu_s=5)


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[SandboxPool]:
    try:
        kind = find_kind()
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox here: {error}")
    made = SandboxPool(kind, parent=str(tmp_path))
    yield made
    await made.close()
    assert not any(tmp_path.iterdir())


def test_a_spec_names_bounds_and_no_secret(tmp_path: Path) -> None:
    spec = spec_of(BOUNDS, "sandlock", find_interpreter(""), tmp_path)
    assert "RLIMIT_CORE=0" in str(spec["bounds"])
    assert str(tmp_path) == spec["folder"] and "site-packages" not in str(spec["readable"])


async def run_in(pool: SandboxPool, code: str, wall_s: float = 10.0) -> tuple[int, str, str]:
    sandbox = await pool.open(BOUNDS)
    try:
        result = await sandbox.run(code, wall_s)
        return result.status, result.stopped, result.output
    finally:
        pool.release(sandbox)


async def test_a_zygote_that_was_killed_is_begun_again(pool: SandboxPool) -> None:
    assert (await run_in(pool, "1"))[0] == 0
    process = pool._zygote._process
    assert process is not None
    process.kill()
    process.wait()
    assert (await run_in(pool, "1"))[0] == 0


def test_another_interpreter_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="is no Python"):
        find_interpreter(str(tmp_path / "python"))


# -- supervisor
def test_messages_come_whole_and_the_end_is_none() -> None:
    ours, theirs = socket.socketpair()
    with theirs, theirs.makefile("rb") as lines:
        send(ours, {"code": "x\n" * 50_000})
        assert receive(lines) == {"code": "x\n" * 50_000}
        ours.close()
        assert receive(lines) is None


def test_all_that_is_below_a_process_is_found_and_counted() -> None:
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"1\n"
        below = descendants(child.pid)
        assert len(below) == 1 and child.pid in descendants(os.getpid())
        cpu_s, threads = cpu_and_threads([child.pid, *below])
        assert cpu_s >= 0 and threads >= 2
        child.communicate(b"\n")
    assert descendants(child.pid) == [] and cpu_and_threads([child.pid]) == (0.0, 0)


def test_files_count_with_a_name_and_without(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"x" * 8192)
    assert disk_usage(str(tmp_path), [])[1] == 2
    with (tmp_path / "c").open("wb") as nameless:
        (tmp_path / "c").unlink()
        nameless.write(b"x" * 65_536)
        nameless.flush()
        size, count = disk_usage(str(tmp_path), [os.getpid()])
        assert size >= 65_536 and count >= 3


# -- syscall filter
ALLOW, KILL, REFUSE, ABSENT = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


def verdict(program: bytes, number: int, *, audit: int, first: int = 0) -> int:
    """Returns the verdict of a filter on a call."""
    data = {0: number, 4: audit, 16: first}
    rules = list(struct.iter_unpack("=HBBI", program))
    at = held = 0
    while True:
        code, yes, no, value = rules[at]
        at += 1
        match code:
            case 0x20:
                held = data[value]
            case 0x15:
                at += yes if held == value else no
            case 0x35:
                at += yes if held >= value else no
            case 0x45:
                at += yes if held & value else no
            case 0x06:
                return int(value)


@pytest.mark.parametrize("machine", list(MACHINES))
def test_what_is_refused(machine: str) -> None:
    place, audit, clone = MACHINES[machine]
    program = filter_program(machine)
    for name, numbers in CALLS.items():
        if (number := numbers[place]) is not None:
            assert verdict(program, number, audit=audit) == (ABSENT if name == "clone3" else REFUSE), name
    assert verdict(program, 3, audit=audit) in (ALLOW, REFUSE)
    assert verdict(program, 3, audit=audit ^ 1) == KILL, "another kind of machine"
    assert verdict(program, 0x40000000 + 41, audit=audit) == KILL, "x32"
    assert verdict(program, clone, audit=audit, first=0x11) == ALLOW
    assert verdict(program, clone, audit=audit, first=0x10000011) == REFUSE, "a namespace"


def test_a_machine_that_is_not_known_has_none() -> None:
    with pytest.raises(KeyError):
        filter_program("m68k")


# -- code tools
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
    assert tools.missing() == "there is no bubblewrap (bwrap)"
    assert (await tools.call(request("1"), TOOL)).outcome == "not_sent"
    await tools.aclose()


async def test_calls_leave_nothing_to_one_another() -> None:
    try:
        find_kind()
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox here: {error}")
    tools = CodeTools()
    try:
        code = "open('a', 'w').write('x')\nimport random\nrandom.random()"
        first = await tools.call(request(code), TOOL)
        assert first.outcome == "done"
        assert first.output.endswith("[files that are not kept: a; this server stores none]")
        assert await tools.call(request(code, "other"), TOOL) != first
        running = asyncio.create_task(tools.call(request("while True:\n    pass", "third"), TOOL))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (await tools.call(request("1", "fourth"), TOOL)).output == "1"
    finally:
        await tools.aclose()
