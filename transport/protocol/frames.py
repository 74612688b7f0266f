"""The messages of the session protocol as types, and their encodings.

Server frames are encoded here in both encodings; an `Encoding` also writes the WebSocket frame around the payload,
so that one record is turned into bytes once and the same bytes go to every reader of that encoding (RFC 6455 §5.2: a
server's frames are not masked).

Does not know: connections, order, what a client may say when (`transport.protocol.connection`), how bytes come in
(`transport.protocol.decoding`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec

from sessions.model.commands import ClientCommand, SessionName, Ulid
from sessions.model.errors import SessileError
from sessions.model.events import AnyEvent, Record
from sessions.model.types import INTEGER_MAX, Epoch, Json, SessionId
from transport import errors

# == from the client ===================================================================================================

Position = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)]
EpochName = Annotated[Epoch, msgspec.Meta(max_length=128)]


class ResumePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A session to read, and the position up to which its client has read. Without `offset` it gets a snapshot."""

    session: SessionName
    epoch: EpochName | None = None
    offset: Position | None = None


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """The first frame of a client. `rollup_ms`: how long deltas may wait to be merged with later ones, so that a slow
    link carries fewer frames."""

    auth: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    device: Annotated[str, msgspec.Meta(max_length=128)] | None = None
    resume: Annotated[tuple[ResumePoint, ...], msgspec.Meta(max_length=4096)] = ()
    rollup_ms: Annotated[int, msgspec.Meta(ge=0, le=200)] = 0


class Subscribe(ResumePoint, frozen=True, kw_only=True, tag="subscribe"):
    id: Ulid


class Unsubscribe(msgspec.Struct, frozen=True, kw_only=True, tag="unsubscribe"):
    id: Ulid
    session: SessionName


class Ack(msgspec.Struct, frozen=True, kw_only=True, tag="ack"):
    """Acknowledges everything of `session` up to `offset`. This only frees the window; nothing else depends on it."""

    session: SessionName
    offset: Position


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Requests a pong. Any frame shows that its sender lives."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The answer to a ping."""


class SessionGet(msgspec.Struct, frozen=True, kw_only=True, tag="session.get"):
    id: Ulid
    session: SessionName


class SessionList(msgspec.Struct, frozen=True, kw_only=True, tag="session.list"):
    id: Ulid
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    after: SessionName | None = None


class SessionSearch(msgspec.Struct, frozen=True, kw_only=True, tag="session.search"):
    """Searches for sessions with every word of `q` in the title, or in one text of the present branch."""

    id: Ulid
    q: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    limit: Annotated[int, msgspec.Meta(ge=1, le=50)] = 20
    after: SessionName | None = None


Query = SessionGet | SessionList | SessionSearch
ClientFrame = Hello | Subscribe | Unsubscribe | Ack | Ping | Pong | Query | ClientCommand

# == from the server ===================================================================================================


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    connection: str
    heartbeat_ms: int
    window_events: int
    window_bytes: int


class Resumed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="resumed", rename={"from_": "from"}):
    """The answer to a resume. `mode` says which fields are set (docs/protocol.md 3.1)."""

    session: SessionId
    mode: str
    epoch: Epoch | None = None
    from_: int | None = None
    top: int | None = None
    at: int | None = None
    state: dict[str, Json] | None = None
    reason: str | None = None
    error: dict[str, Json] | None = None


class EventFrame(msgspec.Struct, frozen=True, omit_defaults=True, tag="event", gc=False):
    session: SessionId
    epoch: Epoch
    offset: int
    at: int
    event: AnyEvent
    first_offset: int | None = None


class CaughtUp(msgspec.Struct, frozen=True, kw_only=True, tag="caught_up"):
    session: SessionId
    offset: int


class Goaway(msgspec.Struct, frozen=True, kw_only=True, tag="goaway"):
    reason: str
    after_ms: int


class ErrorFrame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="error"):
    error: dict[str, Json]
    id: str | None = None


class Done(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ok"):
    """The `ok` of a command that no actor answers: subscribe, unsubscribe, session.get."""

    id: str
    session: SessionId | None = None
    epoch: Epoch | None = None
    offset: int | None = None
    state: dict[str, Json] | None = None


class Listed(msgspec.Struct, frozen=True, kw_only=True, tag="ok"):
    """The `ok` of session.list and session.search, newest first. `last_id` is the next page's `after`."""

    id: str
    data: tuple[dict[str, Json], ...]
    has_more: bool
    last_id: SessionId | None


PING: Final = Ping()
PONG: Final = Pong()


def error_frame(error: SessileError, command_id: str | None = None) -> ErrorFrame:
    body = {name: value for name, value in errors.public(error).items() if value is not None}
    return ErrorFrame(error=body, id=command_id)


def event_frame(session: SessionId, epoch: Epoch, record: Record, first_offset: int | None = None) -> EventFrame:
    """Returns an event as readers see it, without `record.private`."""
    return EventFrame(session, epoch, record.offset, record.at, record.event, first_offset)


# == encodings =========================================================================================================


@dataclass(slots=True, eq=False, repr=False)
class Encoding:
    """One of the two ways to write a frame, JSON or MessagePack; compared by identity."""

    name: str
    first_byte: int  # of a WebSocket frame: FIN and the opcode
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes | bytearray], Any]
    subprotocol: str = field(init=False)
    binary: bool = field(init=False)

    def __post_init__(self) -> None:
        self.subprotocol = f"sessile.v1+{self.name}"
        self.binary = self.first_byte == _BINARY

    def frame(self, message: msgspec.Struct) -> bytes:
        """Returns a message as one whole WebSocket frame."""
        payload = self.encode(message)
        length = len(payload)
        if length < 126:
            return bytes((self.first_byte, length)) + payload
        if length < 65536:
            return _pack_16(self.first_byte, 126, length) + payload
        return _pack_64(self.first_byte, 127, length) + payload

    def __repr__(self) -> str:
        return f"<Encoding {self.name}>"


_TEXT: Final = 0x81
_BINARY: Final = 0x82
_pack_16 = struct.Struct("!BBH").pack
_pack_64 = struct.Struct("!BBQ").pack

JSON: Final = Encoding("json", _TEXT, msgspec.json.Encoder().encode, msgspec.json.Decoder().decode)
MSGPACK: Final = Encoding("msgpack", _BINARY, msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode)
ENCODINGS: Final[dict[str, Encoding]] = {encoding.subprotocol: encoding for encoding in (JSON, MSGPACK)}
