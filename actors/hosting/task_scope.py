"""Runs background tasks for as long as a block lasts: its end cancels them, and a task that fails ends the block."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any


class TaskScope:
    """An async context for background tasks: its end cancels them. Nothing may be spawned before it is entered."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._running: dict[asyncio.Task[None], None] = {}

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._group.create_task(work)
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))
        return task

    async def __aenter__(self) -> TaskScope:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in list(self._running):
            task.cancel()
        await self._group.__aexit__(kind, error, trace)
