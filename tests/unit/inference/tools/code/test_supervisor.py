"""The supervisor's parts that need no sandbox: messages, and what is below a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from inference.tools.code.supervisor import cpu_and_threads, descendants, disk_usage, receive, send


def test_messages_come_whole_and_the_end_is_none() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        send(ours, {"code": "x" * 100_000})
        assert receive(theirs) == {"code": "x" * 100_000}
        ours.close()
        assert receive(theirs) is None


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
