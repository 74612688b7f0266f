"""The tasks that a gateway owns: bounded by their starters, watched to their end, ended with the gateway.

An `asyncio.TaskGroup` gives up all of its tasks when one fails. Here one client's failure must not be another's: a task
that fails is logged with its traceback and counted, the rest goes on. `close` cancels what is left and waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import structlog

log = structlog.get_logger(__name__)


class Tasks:
    """A set of running tasks with one owner. `failures` counts those that raised."""

    __slots__ = ("_closed", "_tasks", "failures")

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.failures = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` until it ends or `close` cancels it. After `close` nothing is started any more."""
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures += 1
            log.error("task_failed", exc_info=error)

    async def settled(self) -> None:
        """Waits until no task is left, including those that are started meanwhile."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def close(self) -> None:
        """Cancels every task and waits until the last one has ended. Idempotent."""
        self._closed = True
        while self._tasks:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.wait(list(self._tasks))


@asynccontextmanager
async def background_tasks(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs coroutines that never end by themselves while the block runs, then cancels them."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(work) for work in works]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
