"""Keeps what a target computes for hand-offs apart: a session's switch waits for no other session's long computation.

A target computes long prompts before short rests, whoever waits. So while sessions are switched to it, no long prompt
is begun there, and while one is computed, the sessions that are ready go on at their source. Switches go first.

Bound: `switches` at the same time, and one computation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class TargetGate:
    """Admits switches and computations of hand-offs to one target, as one source sees it."""

    def __init__(self, switches: int) -> None:
        self._free = switches
        self._switches = switches
        self._ready = 0  # how many sessions wait for their switch
        self._computing = False
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def switch(self) -> AsyncIterator[None]:
        """Waits until a switch may begin, and keeps its place while the context lasts; readers wait for it."""
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
        """Waits until a long computation may begin, and keeps its place while the context lasts; nobody waits for
        it."""
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
