"""Limits how many sessions that lost their owner are recovered at the same time, by priority.

Recovering a turn costs the survivor a prefill, so a replica that inherits hundreds of sessions at once would serve
none. A slot is held from before the claim until the recovered session has written something, or has ended, or
`patience_s` is over; waiters are admitted by priority, then in order of arrival. Commands do not pass here: they are
served at once.

Bounds: `at_once` slots. The callers bound how many wait.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from sessions.model.events import Record, SessionMigrated
from sessions.model.types import SessionKey

FIRST, READ, UNREAD = 0, 1, 2  # priorities: a command waits for it; it has readers; it has none


class RecoveryGate:
    """The recovery slots of one replica."""

    def __init__(self, *, at_once: int, patience_s: float) -> None:
        self._free = at_once
        self._patience_s = patience_s
        self._line: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = 0
        self._holding: dict[SessionKey, asyncio.TimerHandle] = {}

    @property
    def waiting(self) -> int:
        return sum(not place.done() for _, _, place in self._line)

    async def enter(self, priority: int) -> None:
        """Waits for a slot; smaller `priority` goes first. The caller must then call `leave` or `hold`."""
        if self._free and not self._line:
            self._free -= 1
            return
        self._arrivals += 1
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._line, (priority, self._arrivals, place))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """Gives a slot to the next waiter, or back."""
        while self._line:
            place = heapq.heappop(self._line)[2]
            if not place.done():
                place.set_result(None)
                return
        self._free += 1

    def hold(self, key: SessionKey) -> None:
        """Keeps the caller's slot for `key` until the session makes progress or ends, or `patience_s` is over. Two
        recoveries of one session keep one slot."""
        if key in self._holding:
            self.leave()
            return
        expired: Callable[[SessionKey], None] = self.done
        self._holding[key] = asyncio.get_running_loop().call_later(self._patience_s, expired, key)

    def published(self, key: SessionKey, records: tuple[Record, ...]) -> None:
        """Gives back the slot of a session that made progress: records of it, other than of its migration, became
        durable."""
        if key in self._holding and not all(isinstance(record.event, SessionMigrated) for record in records):
            self.done(key)

    def done(self, key: SessionKey) -> None:
        """Gives back the slot kept for a session that goes on, or has ended; if there is none, does nothing."""
        timer = self._holding.pop(key, None)
        if timer is not None:
            timer.cancel()
            self.leave()

    def close(self) -> None:
        for timer in self._holding.values():
            timer.cancel()
        self._holding.clear()
