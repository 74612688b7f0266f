"""What becomes an MCP server's command dies with who started it, and has bounds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from inference.tools.mcp import launcher
from tests.support.mcp.opened import until

LAUNCHER = str(Path(launcher.__file__))


def test_its_bounds_hold() -> None:
    code = "import resource as r; print(r.getrlimit(r.RLIMIT_NOFILE)[0], r.getrlimit(r.RLIMIT_DATA)[0])"
    command = [sys.executable, LAUNCHER, str(os.getpid()), str(256 << 20), sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == [
        "1024",
        str(256 << 20),
    ]


def test_no_command_and_no_parent() -> None:
    wrong = [sys.executable, LAUNCHER, str(os.getpid()), "268435456", "/nowhere/nothing"]
    assert "No such file" in subprocess.run(wrong, capture_output=True, text=True, check=False).stderr
    orphan = [sys.executable, LAUNCHER, "1", "268435456", sys.executable, "-c", "print('ran')"]
    ended = subprocess.run(orphan, capture_output=True, text=True, check=False)
    assert ended.stdout == "" and "ended" in ended.stderr


async def test_it_dies_with_the_server(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    inner = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid()) + '\\n'); time.sleep(1000)"
    outer = (
        "import os, subprocess, sys, time\n"
        f"run = [sys.executable, {LAUNCHER!r}, str(os.getpid()), '268435456', sys.executable, '-c', {inner!r}]\n"
        "subprocess.Popen(run)\n"
        "time.sleep(1000)"
    )
    server = subprocess.Popen([sys.executable, "-c", outer])
    try:
        await until(lambda: pid.exists() and pid.read_text().endswith("\n"))
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
    await until(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists())
