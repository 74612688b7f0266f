"""When a snapshot of a session's state is written beside its log: seldom and often enough.

It rides along with an append that is made anyway: with the end of a response once the log has grown by so many events,
and with the next append of any kind when somebody is about to load the log. It is derived: the log is whole without it.
"""

from __future__ import annotations

from typing import Final

from sessions.events import ResponseCompleted, ResponseFailed, ResponseIncomplete
from sessions.state import State, pack_state
from sessions.steps import Step
from sessions.stored import Snapshot

_ENDS: Final = (ResponseCompleted, ResponseIncomplete, ResponseFailed)


class Snapshots:
    """Of one session: `at` is the offset of the last one, `events` how much the log grows between two."""

    __slots__ = ("_events", "_soon", "at")

    def __init__(self, at: int, events: int) -> None:
        self.at = at
        self._events = events
        self._soon = False

    def soon(self) -> None:
        """The next append is to carry one, whatever it is."""
        self._soon = True

    def due(self, step: Step, state: State) -> Snapshot | None:
        """What rides along with the append of `step`, after which the state is `state`."""
        ended = any(isinstance(record.event, _ENDS) for record in step.records)
        if not self._soon and not (ended and state.top - self.at >= self._events):
            return None
        self._soon = False
        return self.take(state)

    def take(self, state: State) -> Snapshot:
        """One of now."""
        self.at = state.top
        return Snapshot(state.top, pack_state(state))
