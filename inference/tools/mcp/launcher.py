"""Becomes an MCP server's command: it dies with the server that started it, and has bounds on memory and files.

Run as a program, `launcher.py MEMORY_BYTES COMMAND ARGUMENT...`, with nothing but the standard library. On Linux the
kernel ends it when its parent dies, so that a server that was killed leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_FILES_MAX: Final = 1_024


def bound(memory_bytes: int) -> None:
    """Bounds the memory of this process, and of those that it starts, each for itself."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for what, most in ((resource.RLIMIT_DATA, memory_bytes), (resource.RLIMIT_NOFILE, _FILES_MAX)):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def die_with_parent(parent: int) -> None:
    """Has the kernel end this process with its parent; ends it at once where that is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the server that was to use this has ended")


def main(arguments: list[str]) -> None:
    parent, memory_bytes, *command = arguments
    die_with_parent(int(parent))
    bound(int(memory_bytes))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
