"""An asyncio loop on virtual time: waiting costs nothing, and every run is the same.

When nothing is ready the clock jumps to the next timer. ``settle`` waits until everything that can happen without time
passing has happened. A program that waits for something that no timer and no peer will bring is told so (Deadlock).
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """Everything waits and nothing will ever happen."""


class _Selector(selectors.DefaultSelector):
    """Polls the real file descriptors and never blocks on them."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.loop.idle_waiters:
            waiters, self.loop.idle_waiters = self.loop.idle_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        elif timeout is None:
            raise Deadlock("no timer, no callback, nothing to wait for")
        else:
            self.loop.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now = 0.0
        self.idle_waiters: list[asyncio.Future[None]] = []
        super().__init__(selector)

    def time(self) -> float:
        return self.now


async def settle() -> None:
    """Return once nothing more happens at the present moment."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    waiter: asyncio.Future[None] = loop.create_future()
    loop.idle_waiters.append(waiter)
    await waiter


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on virtual time; a task left over at the end is an error."""
    loop = VirtualLoop()
    try:
        result = loop.run_until_complete(main)
        left = asyncio.all_tasks(loop)
        assert not left, f"tasks left over: {left}"
        loop.run_until_complete(loop.shutdown_asyncgens())
        return result
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.close()
