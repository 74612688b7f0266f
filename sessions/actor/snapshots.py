"""Decides when a snapshot of a session's state is written beside its log.

It is part of an append that is made anyway: of the end of a response once the log has grown by `_events`, or of the
next append when another replica is about to load the log. It is derived: the log is whole without it. If one was too
large to be stored, the log has to grow by twice as much before the next is tried, even if it was asked for.
"""

from __future__ import annotations

from typing import Final

from sessions.machine.inputs_and_effects import Step
from sessions.machine.state import State, pack_state
from sessions.model.events import ResponseCompleted, ResponseFailed, ResponseIncomplete
from sessions.model.journal_types import Snapshot

_ENDS: Final = (ResponseCompleted, ResponseIncomplete, ResponseFailed)


class SnapshotPolicy:
    """The rule for when one session's snapshots are due. `_at` is the offset of the last one, `_events` by how many
    events the log grows between two."""

    __slots__ = ("_at", "_events", "_fit", "_soon")

    def __init__(self, at: int, events: int) -> None:
        self._at = at
        self._events = events
        self._soon = False
        self._fit = True

    def soon(self) -> None:
        """Has the next append of any kind carry a snapshot, unless the last snapshot was too large."""
        self._soon = self._fit

    def due(self, step: Step, state: State) -> Snapshot | None:
        """Returns the snapshot to append with `step`, which led to `state`; None if none is due."""
        if not self._soon and not (
            self._grown(state) and any(isinstance(record.event, _ENDS) for record in step.records)
        ):
            return None
        self._soon = False
        return self.take(state)

    def worth(self, state: State) -> bool:
        """Returns whether an actor that leaves memory should write a snapshot."""
        return state.top > self._at and (self._fit or self._grown(state))

    def take(self, state: State) -> Snapshot:
        """Returns a snapshot of `state`; from now on the log's growth is counted from its offset."""
        self._at = state.top
        return Snapshot(state.top, pack_state(state))

    def left_out(self) -> None:
        """Notes that the last snapshot was too large to be stored, and doubles how far the log grows until the next
        one."""
        self._fit = False
        self._events *= 2

    def _grown(self, state: State) -> bool:
        return state.top - self._at >= self._events
