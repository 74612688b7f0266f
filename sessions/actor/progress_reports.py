"""Passes on the progress that a server tool reports for a call: not too often, not too much, and the newest report of
those that wait.

A tool may report as often as it likes. One report is passed on at a time, with a pause between two, and those that come
meanwhile replace each other: what a reader sees is late by at most the pause, and the log grows by at most
`REPORTS_MAX` rows a call.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Final

from sessions.server_tools import ToolProgress

PAUSE_S: Final = 0.25
REPORTS_MAX: Final = 100
MESSAGE_LENGTH_MAX: Final = 512

Report = Callable[[ToolProgress], Awaitable[None]]
Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class ProgressReports:
    """Passes on the progress reports of one tool call while its `async with` is open. `put` may be called from each
    task of the same event loop."""

    def __init__(self, report: Report, spawn: Spawn, *, pause_s: float = PAUSE_S) -> None:
        self._report = report
        self._spawn = spawn
        self._pause_s = pause_s
        self._newest: ToolProgress | None = None
        self._last = -math.inf
        self._left = REPORTS_MAX
        self._task: asyncio.Task[None] | None = None
        self._open = True

    async def __aenter__(self) -> ProgressReports:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drops a report that still waits, because the call's end says more."""
        self._open = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def put(self, progress: ToolProgress) -> None:
        """Takes a report; ignores one whose progress is not finite or does not grow."""
        total = progress.total if progress.total is not None and math.isfinite(progress.total) else None
        if not self._open or not math.isfinite(progress.progress) or progress.progress <= self._last:
            return
        self._last = progress.progress
        message = progress.message[:MESSAGE_LENGTH_MAX] if progress.message else None
        self._newest = ToolProgress(progress.progress, total, message)
        if self._task is None and self._left:
            self._task = self._spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._newest is not None and self._left:
                newest, self._newest = self._newest, None
                self._left -= 1
                await self._report(newest)
                await asyncio.sleep(self._pause_s)
        finally:
            self._task = None
