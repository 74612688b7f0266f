"""Ends a command whose standard output takes no more as `cat` ends: quietly where the reader has gone, else with a
sentence. Imports little, because `--help` runs through it."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

Status = TypeVar("Status", int, int | None)
READER_GONE: Final = 128 + signal.SIGPIPE  # as a shell says it of a program that SIGPIPE has ended


class OutputFile(io.FileIO):
    """Standard output as a raw file that remembers the error of a failed write, because the code that printed may have
    caught it."""

    failure: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = error
            raise


def run_and_flush(work: Callable[[], Status]) -> Status | int:
    """Returns the status of `work` once all that it printed is written, else the status of a failed output."""
    if sys.stdout is None:  # it was closed when the process began
        return work()
    before = sys.stdout
    file = OutputFile(before.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(file), before.encoding, before.errors, line_buffering=bool(before.line_buffering)
    )
    try:
        status = work()
        sys.stdout.flush()
    except (OSError, BaseExceptionGroup, SystemExit):
        if file.failure is None:
            raise
    if file.failure is None:
        return status
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, before.fileno())  # what is buffered is flushed once more when the process ends
    os.close(nowhere)
    if isinstance(file.failure, BrokenPipeError):
        return READER_GONE
    print(f"sessile: standard output cannot be written: {file.failure.strerror or file.failure}", file=sys.stderr)
    return 1
