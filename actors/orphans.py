"""What becomes of answers that nobody reads any more: they go on, pause or are cancelled after a while (orphan policy).

Decides when; what it means for an open response is the actor's. Where the policy is to go on, nothing is kept or timed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.runtime_limits import RuntimeLimits
from sessions.actor import Actor
from sessions.types import SessionKey


class Orphans:
    """The unread sessions of one replica."""

    def __init__(
        self,
        limits: RuntimeLimits,
        actor_of: Callable[[SessionKey], Actor | None],
        read: Callable[[SessionKey], bool],
    ) -> None:
        """`read`: somebody reads the session through this replica."""
        self._limits = limits
        self._actor_of = actor_of
        self._read = read
        self._timers: dict[SessionKey, asyncio.TimerHandle] = {}
        self._paused: set[SessionKey] = set()

    def unread(self, key: SessionKey) -> None:
        """The last reader has left: the policy's time begins."""
        if self._limits.orphan_policy != "continue" and key not in self._timers:
            self._timers[key] = asyncio.get_running_loop().call_later(self._limits.orphan_after_s, self._over, key)

    def read_again(self, key: SessionKey) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._paused:
            self._paused.discard(key)
            actor = self._actor_of(key)
            if actor is not None:
                actor.readers_back()

    def left(self, key: SessionKey) -> None:
        """The session has left memory."""
        self._paused.discard(key)

    def _over(self, key: SessionKey) -> None:
        self._timers.pop(key, None)
        actor = self._actor_of(key)
        if actor is not None and not self._read(key):
            if self._limits.orphan_policy == "pause":
                self._paused.add(key)
            actor.readers_gone(cancel=self._limits.orphan_policy == "cancel")
