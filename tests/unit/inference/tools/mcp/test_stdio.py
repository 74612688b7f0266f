"""The process of an MCP server: its environment, its end, lines without an end."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from mcp.shared.message import SessionMessage

from inference.tools.mcp.stdio import StdioCommand, stdio_streams
from inference.tools.secrets import SentSecrets
from tests.support.mcp.opened import until

SAYS = """
import json, os, sys, time
print(json.dumps({"jsonrpc": "2.0", "method": "notifications/x", "params": {"env": sorted(os.environ)}}), flush=True)
print("no message", flush=True)
print("\\x1b[31mhello", file=sys.stderr, flush=True)
%s
"""


def command(script: str) -> StdioCommand:
    return StdioCommand("t", [sys.executable, "-c", SAYS % script], {"A": "b"}, None, 512 << 20, SentSecrets())


async def test_it_gets_no_more_of_the_environment_than_it_is_given() -> None:
    os.environ["SESSILE_TEST_SECRET"] = "x"
    try:
        async with stdio_streams(command("sys.stdin.read()")) as streams:
            message = await anext(aiter(streams.read))
            assert isinstance(message, SessionMessage)
            seen = json.loads(message.message.model_dump_json())["params"]["env"]
            assert set(seen) <= {"A", "LANG", "PATH", "LC_CTYPE"}
    finally:
        del os.environ["SESSILE_TEST_SECRET"]


async def test_one_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    child = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    script = (
        "import signal, subprocess\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"p = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid) + '\\n')\ntime.sleep(1000)"
    )
    async with stdio_streams(command(script)):
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: not _runs(pid))


async def test_a_line_without_an_end_ends_it() -> None:
    async with stdio_streams(command("while True: sys.stdout.write('x' * 65536)")) as streams:
        assert len([each async for each in streams.read]) == 1 and streams.closed.is_set()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
