"""Applies the orphan policy: answers without readers go on, pause or are cancelled after a while.

It decides when; the actor decides what that means for an open response. Where the policy is to go on, nothing is kept
or timed, except for answers to a client that waits for them on its own connection: its gateway cancels them when the
client leaves. If that gateway has died, so that nobody reads for some seconds, they are cancelled here.

A session whose answers are all paused leaves memory like an idle one, and stays away until it is read here or gets a
command here. This replica remembers it with the fence under which it left; if another owner has taken it since, that
one goes on with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from actors.hosting.runtime_limits import RuntimeLimits
from sessions.actor.actor import Actor
from sessions.model.events import AnyEvent, ResponseIncomplete
from sessions.model.generation import is_attended
from sessions.model.journal_types import Head
from sessions.model.types import SessionKey

LEFT_PAUSED_MAX: Final = 100_000  # beyond it the oldest goes on without readers
_GIVEN_UP: Final = ("cancelled", "orphaned")  # reasons of an answer's end


def is_given_up(event: AnyEvent) -> bool:
    """Returns whether an event ends an answer that a client waited for and has left."""
    if not isinstance(event, ResponseIncomplete) or not is_attended(event.response.request):
        return False
    return (event.response.incomplete_details or {}).get("reason") in _GIVEN_UP


class OrphanPolicy:
    """Applies the orphan policy to the sessions of one replica that nobody reads."""

    def __init__(
        self,
        limits: RuntimeLimits,
        actor_of: Callable[[SessionKey], Actor | None],
        read: Callable[[SessionKey], bool],
        wake: Callable[[SessionKey], None],
    ) -> None:
        """`read` returns whether a session has readers through this replica. `wake` activates a session that left
        memory with paused answers."""
        self._limits = limits
        self._actor_of = actor_of
        self._read = read
        self._wake = wake
        self._timers: dict[SessionKey, asyncio.TimerHandle] = {}
        self._attended_timers: dict[SessionKey, asyncio.TimerHandle] = {}
        self._paused: set[SessionKey] = set()
        self._left_paused: dict[SessionKey, int] = {}  # sessions that left memory paused, with the fence at that time

    def unread(self, key: SessionKey) -> None:
        """Starts the time after which the policy applies to a session, because its last reader has left."""
        self._time_attended(self._actor_of(key))
        if self._limits.orphan_policy != "continue" and key not in self._timers:
            self._timers[key] = asyncio.get_running_loop().call_later(self._limits.orphan_after_s, self._expired, key)

    def activated(self, actor: Actor) -> None:
        """Starts the time after which answers that a client waits for are cancelled, if the session came into memory
        without readers; they may come back until it ends."""
        if not self._read(actor.key):
            self._time_attended(actor)

    def _time_attended(self, actor: Actor | None) -> None:
        if actor is not None and actor.key not in self._attended_timers and actor.is_attended:
            after_s = self._limits.attended_after_s
            timer = asyncio.get_running_loop().call_later(after_s, self._client_left, actor.key)
            self._attended_timers[actor.key] = timer

    def _client_left(self, key: SessionKey) -> None:
        self._attended_timers.pop(key, None)
        actor = self._actor_of(key)
        if actor is not None and not self._read(key):
            actor.client_left()

    def read_again(self, key: SessionKey) -> None:
        if (attended := self._attended_timers.pop(key, None)) is not None:
            attended.cancel()
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._paused:
            self._paused.discard(key)
            actor = self._actor_of(key)
            if actor is not None:
                actor.readers_back()
        if self._left_paused.pop(key, None) is not None and self._actor_of(key) is None:
            self._wake(key)

    def left_paused(self, head: Head) -> bool:
        """Returns whether a session left memory here with all its answers paused, and has had no owner since."""
        if self._left_paused.get(head.key, head.fence) != head.fence:
            del self._left_paused[head.key]
        return head.key in self._left_paused

    def deactivated(self, actor: Actor) -> None:
        """Notes that a session has left memory, and whether all its open answers were paused."""
        if (attended := self._attended_timers.pop(actor.key, None)) is not None:
            attended.cancel()
        self._left_paused.pop(actor.key, None)
        if actor.key in self._paused and actor.open and not actor.busy:
            self._left_paused[actor.key] = actor.fence
            if len(self._left_paused) > LEFT_PAUSED_MAX:
                del self._left_paused[next(iter(self._left_paused))]
        self._paused.discard(actor.key)

    def _expired(self, key: SessionKey) -> None:
        self._timers.pop(key, None)
        actor = self._actor_of(key)
        if actor is not None and not self._read(key):
            if self._limits.orphan_policy == "pause":
                self._paused.add(key)
            actor.readers_left(cancel=self._limits.orphan_policy == "cancel")
