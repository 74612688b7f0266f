"""Work that is begun for a caller and goes on without it.

A call that is cancelled, or whose deadline passes, ends its handler. A command that was begun must not end with it
(I5): it runs as a task of the gateway, and its caller waits for it as long as it wants to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from transport.tasks import Tasks

T = TypeVar("T")


def begin(tasks: Tasks, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Starts `work`. Whoever waits for the future shields it; that nobody looks at its error is fine."""
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
