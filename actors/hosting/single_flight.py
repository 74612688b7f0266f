"""Runs one attempt at a time per session: concurrent callers wait for it, and all go on in the order of arrival.

An attempt is a task of its own, so a caller that is cancelled does not end it for the others. If the attempt itself is
cancelled, its callers get the error `interrupted`, and are not cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, TypeVar

from sessions.model.errors import Unavailable
from sessions.model.types import SessionKey

T = TypeVar("T")


def shutting_down() -> Unavailable:
    return Unavailable("shutting_down", "This server is shutting down.", retry_after_ms=1_000)


class SingleFlight(Generic[T]):
    """Runs at most one attempt for each session. `close` must be called; it cancels running attempts."""

    def __init__(self, interrupted: Callable[[], Exception], *, ended: Callable[[SessionKey, Exception], None]) -> None:
        """`interrupted` makes the error for callers whose attempt is cancelled. `ended` is called with the error of
        every attempt that fails, whether or not a caller waits for it."""
        self._interrupted = interrupted
        self._ended = ended
        self._tasks: dict[SessionKey, asyncio.Task[T]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[SessionKey]:
        return iter(self._tasks)

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._tasks

    def get(self, key: SessionKey) -> asyncio.Task[T] | None:
        return self._tasks.get(key)

    def begin(self, key: SessionKey, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begins an attempt; none may be running for `key`."""
        assert key not in self._tasks
        task = self._tasks[key] = asyncio.create_task(work)
        task.add_done_callback(lambda done: self._done(key, done))
        return task

    def _done(self, key: SessionKey, task: asyncio.Task[T]) -> None:
        del self._tasks[key]
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._ended(key, error)

    async def join(self, task: asyncio.Task[T]) -> T:
        """Waits for an attempt, and returns or raises what it does; raises the error `interrupted` if the attempt is
        cancelled."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if task.cancelled() and waiter is not None and not waiter.cancelling():
                raise self._interrupted() from None
            raise

    async def close(self) -> None:
        """Cancels running attempts, and returns when they have ended."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
