"""Keeps positions in the program's store: at moments that matter, once a second in between, and at the end.

Invariants: one save at a time; a position and its view are taken together; a save that has begun is never cut short.
A store that fails is reported in the log of the process and costs a longer replay, never the conversation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

from ._track import Phase
from .session import Session
from .store import Position, PositionStore

_EVERY_S = 1.0
logger = logging.getLogger("sessile_client")


class Saver:
    """``run`` is a task that ends by itself after ``finish``."""

    def __init__(self, store: PositionStore, find: Callable[[str], Session | None]) -> None:
        self._store = store
        self._find = find
        self._dirty: set[str] = set()
        self._due = asyncio.Event()
        self._turn = asyncio.Lock()
        self._finishing = False

    def mark(self, name: str, *, now: bool) -> None:
        """The session's position has changed; ``now``: worth keeping at once."""
        self._dirty.add(name)
        if now:
            self._due.set()

    def finish(self, names: Iterable[str]) -> None:
        """Save these and end."""
        self._dirty.update(names)
        self._finishing = True
        self._due.set()

    async def run(self) -> None:
        while self._dirty or not self._finishing:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._due.wait(), _EVERY_S if self._dirty else None)
            self._due.clear()
            for name in list(self._dirty):
                await self.save(name)

    async def save(self, name: str) -> None:
        """Keep the position of one session as it is now; forget that of one that has ended."""
        self._dirty.discard(name)
        session = self._find(name)
        if session is None:
            return
        try:
            async with self._turn:
                if session.phase in (Phase.GONE, Phase.DELETED):
                    await self._store.forget(name)
                elif session.epoch is not None and session.offset > 0:
                    await self._store.save(name, Position(session.epoch, session.offset, session.view.to_state()))
        except Exception:
            logger.exception("the position of %s could not be kept", name)
