"""Position-keeping for one session: which events are applied, which are dropped, when to subscribe again.

The rule (protocol.md, 3.2): apply an event whose first offset is last + 1, drop what is older, subscribe again on a
gap. Invariants: the view is always the log up to ``offset`` of ``epoch``, without hole or repeat; between
subscribing again and the answer nothing is applied. It does NOT know connections, time or commands; the core carries
out the steps that it returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from ._values import mapping_of, number_of, text_of, text_or_none
from ._view import State, View
from ._wire import Frame, integer, string
from .errors import ServerError

Mode = Literal["replay", "snapshot", "reset", "saved", "lagged"]
#: after so many gaps without one event applied a snapshot is requested; one more ends the connection
_STRIKES_MAX = 3


class Phase(str, Enum):
    """Where a session stands for its reader."""

    ATTACHING = "attaching"
    REPLAYING = "replaying"
    LIVE = "live"
    GONE = "gone"
    DELETED = "deleted"


class Step(Enum):
    """What the core must do after a frame."""

    NOTHING = "nothing"
    SUBSCRIBE = "subscribe"
    DISCONNECT = "disconnect"


@dataclass(frozen=True)
class Event:
    """An event of the log, as applied. ``first_offset`` < ``offset`` where deltas were laid together."""

    session: str
    epoch: str
    offset: int
    first_offset: int
    at_ms: int
    type: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Snapshot:
    """In place of events: the view was set to ``state`` at ``offset``.

    ``mode``: ``snapshot`` and ``reset`` come from the server (``reset``: the log we knew is no more), ``saved`` from
    the position store, ``lagged`` is local: the reader of events fell too far behind.
    """

    session: str
    mode: Mode
    epoch: str | None
    offset: int
    state: State
    reason: str | None = None


@dataclass(eq=False, repr=False)
class Track:
    """One session being read."""

    session: str
    epoch: str | None = None
    #: the last offset applied; None: nothing known, a snapshot is needed; 0: the log from its start
    offset: int | None = None
    view: View = field(default_factory=View)
    phase: Phase = Phase.ATTACHING
    error: ServerError | None = None
    #: requested on the present connection (by hello or subscribe)
    requested: bool = False
    _strikes: int = 0

    @property
    def reading(self) -> bool:
        return self.phase not in (Phase.GONE, Phase.DELETED)

    def request(self) -> Frame:
        """The session, epoch and offset fields of ``hello.resume`` and ``subscribe``."""
        self.requested = True
        self.phase = Phase.ATTACHING
        fields: Frame = {"session": self.session}
        if self.offset is not None and self._strikes < _STRIKES_MAX:
            if self.epoch is not None:
                fields["epoch"] = self.epoch
            fields["offset"] = self.offset
        return fields

    def disconnected(self) -> None:
        self.requested = False
        if self.reading:
            self.phase = Phase.ATTACHING

    def refuse(self, error: ServerError) -> None:
        """Reading has ended for good."""
        self.phase = Phase.GONE
        self.error = error

    def resumed(self, frame: Frame) -> tuple[Step, Snapshot | None]:
        """Take a ``resumed`` of mode replay, snapshot or reset."""
        mode = string(frame, "mode")
        epoch = string(frame, "epoch")
        if mode == "replay":
            first = integer(frame, "from", least=1)
            if self.epoch is None and self.offset == 0:
                self.epoch = epoch
            if self.offset is None or epoch != self.epoch or first > self.offset + 1:
                return self._subscribe_again(), None
            self.phase = Phase.REPLAYING
            return Step.NOTHING, None
        at = integer(frame, "at")
        self.phase = Phase.REPLAYING
        if mode != "reset" and epoch == self.epoch and self.offset is not None and at < self.offset:
            return Step.NOTHING, None  # an older cut of the log that we hold: its tail is dropped as known
        self.view = View.from_state(mapping_of(frame.get("state")))
        self.epoch, self.offset = epoch, at
        kind: Mode = "reset" if mode == "reset" else "snapshot"
        reason = text_or_none(frame.get("reason"))
        return Step.NOTHING, Snapshot(self.session, kind, epoch, at, self.view.to_state(), reason)

    def event(self, frame: Frame) -> tuple[Step, Event | None]:
        """Take an ``event``."""
        offset = integer(frame, "offset", least=1)
        first = integer(frame, "first_offset", least=1, default=offset)
        epoch = string(frame, "epoch")
        body = frame.get("event")
        if self.phase not in (Phase.REPLAYING, Phase.LIVE) or self.offset is None:
            return Step.NOTHING, None  # sent before our request was answered; the answer covers it
        if epoch != self.epoch:
            return self._subscribe_again(), None
        if offset <= self.offset:
            return Step.NOTHING, None
        if first != self.offset + 1 or not isinstance(body, dict):
            return self._subscribe_again(), None
        self.view.apply(body)
        self.offset = offset
        self._strikes = 0
        if self.view.deleted:
            self.phase = Phase.DELETED
        at_ms = number_of(frame.get("at"))
        return Step.NOTHING, Event(self.session, epoch, offset, first, at_ms, text_of(body.get("type")), body)

    def caught_up(self, frame: Frame) -> tuple[Step, bool]:
        """Take a ``caught_up``; true where the session went live by it."""
        offset = integer(frame, "offset")
        if self.phase is not Phase.REPLAYING or self.offset is None:
            return Step.NOTHING, False
        if offset > self.offset:
            return self._subscribe_again(), False
        self.phase = Phase.LIVE
        self._strikes = 0
        return Step.NOTHING, True

    def _subscribe_again(self) -> Step:
        self._strikes += 1
        self.phase = Phase.ATTACHING
        return Step.DISCONNECT if self._strikes > _STRIKES_MAX else Step.SUBSCRIBE
