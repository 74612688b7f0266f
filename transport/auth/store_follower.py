"""Follows a store whose changes a cache keeps in memory: reads them every `POLL_S`, and reports once when it cannot.

What was not read for `STALE_S` cannot be trusted any more. Knows nothing of what is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from sessions.model.errors import SessileError, Unavailable

POLL_S: Final = 1.0
READ_S: Final = 5.0
STALE_S: Final = 15.0
PAGE: Final = 2000

log = structlog.get_logger(__name__)


class StoreFollower:
    """Keeps a copy of a store up to date while `run` runs, and knows when the copy is too old to be trusted."""

    def __init__(
        self,
        read: Callable[[], Awaitable[None]],
        on_stale: Callable[[Unavailable], None],
        clock: Callable[[], float],
        *,
        name: str,
        checked: str,
    ) -> None:
        """`read` takes in the store's changes; it is called by one task at a time. `on_stale` is called each time that
        the store could not be read for `STALE_S`. For messages, `name` says what is read, and `checked` what cannot be
        checked while the store is away."""
        self._read = read
        self._on_stale = on_stale
        self._clock = clock
        self._name = name
        self._checked = checked
        self._fresh_at: float | None = None  # when the last successful read began
        self._reading = asyncio.Lock()

    def check_fresh(self) -> None:
        """Raises Unavailable if the store was not read for too long."""
        if self._fresh_at is None or self._clock() - self._fresh_at > STALE_S:
            raise Unavailable(
                "keys_unavailable", f"{self._checked} cannot be checked at the moment.", retry_after_ms=1000
            )

    async def refresh(self) -> None:
        """Takes in changes now. Raises Unavailable."""
        try:
            async with asyncio.timeout(READ_S), self._reading:
                began = self._clock()
                await self._read()
                self._fresh_at = began
        except TimeoutError as error:
            raise Unavailable("keys_unavailable", f"The {self._name} could not be read in time.") from error

    async def run(self) -> None:
        """Takes in changes every `POLL_S` until cancelled."""
        reported = False
        while True:
            try:
                await self.refresh()
                reported = False
            except SessileError as error:
                log.warning(f"{self._name}_read_failed", error=error.code)
                try:
                    self.check_fresh()
                except Unavailable as stale:
                    if not reported:
                        reported = True
                        self._on_stale(stale)
            await asyncio.sleep(POLL_S)
