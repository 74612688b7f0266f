"""Keeps what a target computes for hand-offs apart: a session's switch waits for no other session's long computation.

A target computes a long prompt before the short rest of another session, even if readers wait for the latter. So while
sessions are switched to it, no long prompt is begun there, and while one is computed, the sessions that are ready go on
at their source. Switches go first.

Bound: `switches` at the same time, and one computation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class TargetGate:
    """Admits switches and long computations to one target. It knows only those of its own source's sessions."""

    def __init__(self, switches: int) -> None:
        self._free = switches
        self._switches = switches
        self._ready = 0  # how many sessions wait for their switch
        self._computing = False
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def switch(self) -> AsyncIterator[None]:
        """Waits until a switch may begin, and holds a place for it while the context lasts. Readers wait meanwhile, so
        switches go first."""
        self._ready += 1
        try:
            await self._until(lambda: self._free > 0 and not self._computing)
        finally:
            self._ready -= 1
            self._notify()
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1
            self._notify()

    @asynccontextmanager
    async def compute(self) -> AsyncIterator[None]:
        """Waits until a long computation may begin, and holds the only place for it while the context lasts. No reader
        waits meanwhile."""
        await self._until(lambda: not self._computing and not self._ready and self._free == self._switches)
        self._computing = True
        try:
            yield
        finally:
            self._computing = False
            self._notify()

    async def _until(self, may_begin: Callable[[], bool]) -> None:
        while not may_begin():
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
