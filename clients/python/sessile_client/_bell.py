"""A signal without memory: everyone waiting now is woken, whoever comes later waits for the next ring.

Whoever uses it checks its condition, and waits only if it does not hold; between the check and ``wait`` no ``await``
may stand, so that no ring is missed.
"""

from __future__ import annotations

import asyncio


class Bell:
    """Rings for all who wait. Cancelling a waiter leaves nothing behind."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)
