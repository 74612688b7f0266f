"""Watches the event loop: measures how late its timers run, and logs from a thread when it stands still.

The loop beats by a timer of its own, a few times in the time of a stall, and each beat's lateness goes into the
histogram of delays. The thread only looks whether the last beat is too long ago: it never wakes the loop. When a beat
is `stall_ms` late, the thread logs, in one line, which calls the loop's thread is in: also where the loop never comes
back. A stall that is longer than `stall_ms` and a beat is always seen.

Code that holds the interpreter's lock stops this thread, too: such a stall is logged when it is over, without its
calls.
"""

from __future__ import annotations

import asyncio
import itertools
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
_BEATS: Final = 2  # beats of the loop, and checks of the thread, in the time of a stall
_PLACE_PARTS: Final = 2  # of a file's path that a line shows


class LoopWatchdog:
    """Reports stalls of an event loop. Use it as a context manager in that loop; with `stall_ms` 0 it does nothing."""

    def __init__(self, metrics: Metrics, *, stall_ms: float, report: Callable[..., None] | None = None) -> None:
        """`report`, if given, is called instead of writing to the log, with `stalled_ms` and `running` (the calls),
        from the watching thread or from the loop."""
        self._delays = metrics.loop_delay_s
        self._stalls = metrics.loop_stalls
        self._stall_s = stall_ms / 1000
        self._beat_s = self._stall_s / _BEATS
        self._report = report or _log_stall
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # time of the next beat, by time.monotonic
        self._reported = 0.0  # the beat whose stall was reported during the stall

    async def __aenter__(self) -> LoopWatchdog:
        if self._stall_s > 0:
            self._schedule(asyncio.get_running_loop())
            self._thread = threading.Thread(
                target=self._watch, args=(threading.get_ident(),), name="loop-watchdog", daemon=True
            )
            self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = time.monotonic() + self._beat_s
        self._timer = loop.call_later(self._beat_s, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measures how late this beat is. Runs in the loop."""
        due = self._due
        late = max(0.0, time.monotonic() - due)
        self._delays.observe(late)
        if late > self._stall_s:
            self._stalls.add()
            if self._reported != due:
                self._report(stalled_ms=round(late * 1000), running="code that held the interpreter's lock")
        self._schedule(loop)

    def _watch(self, watched: int) -> None:
        """Reports a beat that does not come, with the running calls. Runs in the thread."""
        while not self._stopped.wait(self._beat_s):
            due = self._due
            if time.monotonic() - due > self._stall_s and self._reported != due:
                self._reported = due
                self._report(stalled_ms=round(self._stall_s * 1000), running=running_calls(watched))


def running_calls(thread: int) -> str:
    """Returns the calls that a thread is in, the innermost first, as one line."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "the thread has ended"
    calls = itertools.islice(traceback.walk_stack(frame), FRAMES_MAX)  # reads no source: it would stay in memory
    return " < ".join(f"{_place(call.f_code.co_filename)}:{line} {call.f_code.co_name}" for call, line in calls)


def _place(filename: str) -> str:
    return "/".join(filename.split("/")[-_PLACE_PARTS:])


def _log_stall(*, stalled_ms: int, running: str) -> None:
    log.warning("loop_stalled", stalled_ms=stalled_ms, running=running)
