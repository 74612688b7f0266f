"""Work that is begun for a caller and goes on without it, and work that ends when the server goes away.

A call that is cancelled, or whose deadline passes, ends its handler. A command that was begun must not end with it
(I5): it runs as a task of the gateway, and its caller waits for it as long as it wants to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from sessions.model.errors import Unavailable
from transport.tasks import Tasks

T = TypeVar("T")


def start_detached(tasks: Tasks, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Starts `work` as a task of the gateway and returns a future of its result. Whoever awaits the future shields it,
    so that their cancellation does not reach it. If nobody awaits it, an error is dropped."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def carry() -> None:
        try:
            result = await work
        except asyncio.CancelledError:
            future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - handed to who waits
            future.set_exception(error)
            future.exception()  # its caller may have left
        else:
            future.set_result(result)

    tasks.start(carry())
    return future


async def run_unless_set(leaving: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work`. If `leaving` is set before it has ended, cancels it and raises Unavailable."""
    working, left = asyncio.create_task(work), asyncio.create_task(leaving.wait())
    try:
        await asyncio.wait({working, left}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Unavailable("draining", "This server is shutting down.", retry_after_ms=1000)
        working.result()
    finally:
        working.cancel()
        left.cancel()
        await asyncio.gather(working, left, return_exceptions=True)
