"""Watches the event loop from a thread: counts and logs when it stood still, and names what ran.

Every few dozen milliseconds the thread asks the loop to note the time, and measures how long that takes. When the loop
has not come to it for `stall_ms`, the thread logs, in one line, which calls the loop's thread is in: also where the
loop never comes back. A stall shorter than `stall_ms` is in the histogram of delays only; one longer than that and a
beat is always seen.

Code that holds the interpreter's lock stops this thread, too: such a stall is logged when it is over, without its
calls.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Final

import structlog

from sessions.metrics import Metrics

log = structlog.get_logger(__name__)

FRAMES_MAX: Final = 12
_BEATS: Final = 5  # of the thread in the time of a stall
_PLACE_PARTS: Final = 2  # of a file's path, in a line


class LoopWatchdog:
    """Use as a context manager in the loop that is to be watched; `stall_ms` 0: nothing is watched."""

    def __init__(self, metrics: Metrics, *, stall_ms: float, report: Callable[..., None] | None = None) -> None:
        """`report`: called in place of the log, with `stalled_ms` and `running`, from the thread or the loop."""
        self._delays = metrics.loop_delay_s
        self._stalls = metrics.loop_stalls
        self._stall_s = stall_ms / 1000
        self._report = report or _log_stall
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._reported = False  # the stall that is going on

    async def __aenter__(self) -> LoopWatchdog:
        if self._stall_s > 0:
            loop, watched = asyncio.get_running_loop(), threading.get_ident()
            self._thread = threading.Thread(target=self._watch, args=(loop, watched), name="loop-watchdog", daemon=True)
            self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _watch(self, loop: asyncio.AbstractEventLoop, watched: int) -> None:
        beat_s = self._stall_s / _BEATS
        while not self._stopped.wait(beat_s):
            answered = threading.Event()
            self._reported = False
            try:
                loop.call_soon_threadsafe(self._beat, time.monotonic(), answered)
            except RuntimeError:  # the loop is closed
                return
            if not answered.wait(self._stall_s):
                self._reported = True
                self._report(stalled_ms=round(self._stall_s * 1000), running=running_calls(watched))
                while not answered.wait(beat_s):
                    if self._stopped.is_set():
                        return

    def _beat(self, due: float, answered: threading.Event) -> None:
        """In the loop."""
        late = time.monotonic() - due
        self._delays.observe(late)
        if late > self._stall_s:
            self._stalls.add()
            if not self._reported:
                self._report(stalled_ms=round(late * 1000), running="code that held the interpreter's lock")
        answered.set()


def running_calls(thread: int) -> str:
    """Which calls a thread is in, the innermost first, as one line."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "the thread has ended"
    calls = traceback.extract_stack(frame)[-FRAMES_MAX:]
    return " < ".join(f"{_place(each.filename)}:{each.lineno} {each.name}" for each in reversed(calls))


def _place(filename: str) -> str:
    return "/".join(filename.split("/")[-_PLACE_PARTS:])


def _log_stall(*, stalled_ms: int, running: str) -> None:
    log.warning("loop_stalled", stalled_ms=stalled_ms, running=running)
