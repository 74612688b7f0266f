"""A process that watches its parent ends when that is killed, and no process watches a stranger."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

ROOT = Path(__file__).resolve().parents[4]
WATCHING = """
import os, sys
from inference.vllm.parent_watchdog import exit_with_parent
exit_with_parent({front})
print(os.getpid(), flush=True)
sys.stdin.read()
"""
LATE = """
import multiprocessing, os
from inference.vllm.parent_watchdog import exit_with_parent
front, gate = os.getpid(), os.dup(0)
def begin():
    print(os.getpid(), flush=True)
    os.read(gate, 1)
    exit_with_parent(front)
    os.read(gate, 1)
multiprocessing.get_context("fork").Process(target=begin).start()
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux only")


def gone(process: int, patience_s: float) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(1000 * patience_s))


@contextlib.contextmanager
def killed_parent(*arguments: str) -> Iterator[tuple[IO[bytes], int]]:
    """A parent that tells its child's number and is killed then: what is the child's input too, and the child as a
    descriptor. In the end the input is closed, and nobody is left."""
    command = [sys.executable, "-c", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.send_signal(signal.SIGKILL)
            parent.wait(10)
            yield parent.stdin, child
        finally:
            parent.stdin.close()
            assert gone(child, 10)
            os.close(child)


@pytest.mark.parametrize(("front", "ends"), [("os.getppid()", True), ("1 << 30", False)])
def test_a_watching_process_ends_with_its_parent(front: str, ends: bool) -> None:
    with killed_parent(PARENT, WATCHING.format(front=front)) as (_, child):
        assert gone(child, 10 if ends else 0.2) is ends  # its input is still open: only the watch ends it


def test_one_whose_parent_was_killed_before_it_could_watch_ends_too() -> None:
    with killed_parent(LATE) as (input, child):
        input.write(b"x")
        input.flush()
        assert gone(child, 10)  # its input is still open
