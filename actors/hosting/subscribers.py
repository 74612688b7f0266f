"""Publishes events to those who watch sessions through this replica, and notifies them when a session leaves memory.

A watch outlives activations: it goes on with the next actor of the session here. `actors.hosting.orphan_policy` decides
about answers that are not watched any more; readers at gateways are in `actors.routing.subscriptions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from actors.hosting.orphan_policy import OrphanPolicy
from actors.hosting.runtime_limits import RuntimeLimits
from sessions.actor.actor import Actor
from sessions.model.types import Epoch, SessionKey
from sessions.ports import Owner, Published

T = TypeVar("T")
Sink = Callable[[Published], None]
OnDeactivated = Callable[
    [Epoch, int, Owner | None], None
]  # a session has left memory: its epoch, top, and the next owner


class Subscribers:
    """The subscribers of one replica's sessions: sinks for records, and functions called when a session leaves
    memory."""

    def __init__(
        self,
        limits: RuntimeLimits,
        actor_of: Callable[[SessionKey], Actor | None],
        wake: Callable[[SessionKey], None],
    ) -> None:
        """`actor_of` returns the actor of a session in memory. `wake` activates a session that left memory with its
        answers paused, once somebody reads it again."""
        self._sinks: dict[SessionKey, dict[Sink, None]] = {}
        self._on_deactivated: dict[SessionKey, dict[OnDeactivated, None]] = {}
        self._orphan_policy = OrphanPolicy(limits, actor_of, self._sinks.__contains__, wake)
        self.left_paused = self._orphan_policy.left_paused

    @property
    def empty(self) -> bool:
        return not self._sinks and not self._on_deactivated

    def watch(self, key: SessionKey, sink: Sink) -> Callable[[], None]:
        """Calls `sink` with all records of the session that become durable here from now on, until the returned
        function is called."""
        self._sinks.setdefault(key, {})[sink] = None
        self._orphan_policy.read_again(key)

        def unwatch() -> None:
            if _dropped(self._sinks, key, sink):
                self._orphan_policy.unread(key)

        return unwatch

    def attach(self, key: SessionKey, sink: Sink, on_deactivated: OnDeactivated) -> Callable[[], None]:
        """Watches a session that is in memory, until the returned function is called. `on_deactivated` is called once
        when the session leaves memory."""
        unwatch = self.watch(key, sink)
        self._on_deactivated.setdefault(key, {})[on_deactivated] = None

        def detach() -> None:
            unwatch()
            _dropped(self._on_deactivated, key, on_deactivated)

        return detach

    def count(self, key: SessionKey) -> int:
        return len(self._sinks.get(key, ()))

    def publish(self, published: Published) -> None:
        for sink in tuple(self._sinks.get(published.key, ())):
            sink(published)

    def activated(self, actor: Actor) -> None:
        self._orphan_policy.activated(actor)

    def deactivated(self, actor: Actor, successor: Owner | None) -> None:
        """Tells subscribers that a session has left memory here. `successor` is its next owner, None if not known."""
        self._orphan_policy.deactivated(actor)
        for notify in self._on_deactivated.pop(actor.key, {}):
            notify(actor.epoch, actor.top, successor)


def _dropped(table: dict[SessionKey, dict[T, None]], key: SessionKey, one: T) -> bool:
    """Removes `one` from a key's entries. Returns True if that was the last entry of the key."""
    ones = table.get(key)
    if ones is None:
        return False
    ones.pop(one, None)
    if ones:
        return False
    del table[key]
    return True
