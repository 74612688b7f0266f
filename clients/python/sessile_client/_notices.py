"""What the core reports to its shell: the connection's state and the facts that programs wait for.

Plain data, decided in ``_core``; delivered in the order in which they happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ._track import Event, Snapshot
from ._wire import Frame
from .errors import ServerError, SessileError


class Link(str, Enum):
    """Where the connection stands."""

    OFFLINE = "offline"
    CONNECTING = "connecting"
    READY = "ready"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Ready:
    connection: str


@dataclass(frozen=True)
class CaughtUp:
    session: str


@dataclass(frozen=True)
class ReadEnded:
    """Reading the session has ended; its track holds the error."""

    session: str


@dataclass(frozen=True)
class Answered:
    """The one answer to a command: ``ok`` (its fields) or an error."""

    id: str
    ok: Frame | None
    error: SessileError | None


@dataclass(frozen=True)
class GoingAway:
    reason: str
    after_ms: int


@dataclass(frozen=True)
class Disconnected:
    """The connection ended; the client dials again in ``retry_in_s``. ``captive_portal``: somebody else answers in the
    server's place, and the user has to sign in there first.
    """

    code: int
    reason: str
    retry_in_s: float
    captive_portal: bool = False


@dataclass(frozen=True)
class Warned:
    """An error of the server's that answers no command."""

    error: ServerError


@dataclass(frozen=True)
class Stopped:
    error: SessileError


#: what happens to a session that is read; an event was applied, a snapshot taken
SessionNotice = Event | Snapshot | CaughtUp | ReadEnded
#: what happens to the connection
LinkNotice = Ready | GoingAway | Disconnected | Warned | Stopped
Notice = SessionNotice | LinkNotice | Answered
