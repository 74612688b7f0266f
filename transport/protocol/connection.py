"""One connection of the session protocol, without I/O: what bytes mean, what is allowed when, what is due.

    hello ──hello accepted──> ready ──goaway, error, time──> closing

The shell hands in messages with `received`, calls `tick` when `deadline` has come, reports what the socket did
(`wrote`, `stalled`, `flowing`), and carries out the returned actions in order. Time is an argument, nothing awaits.

Decides: frames, legal moves, hello and heartbeat times, how many commands may be unanswered, the slow reader's
end, the order of leaving. Does NOT know: keys and principals (the shell authenticates a `Hello`), sessions, sockets.

Shaped after h11 and websockets: a core that several shells can drive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, get_args

import msgspec

from sessions.model.commands import ClientCommand
from sessions.model.errors import BadInput, Limited, SessileError, Unauthorized, Unavailable
from transport import errors
from transport.protocol.decoding import BadFrame, RefusedFrame, decode
from transport.protocol.flow_control import Window
from transport.protocol.frames import (
    PING,
    PONG,
    Ack,
    Encoding,
    Goaway,
    Hello,
    Ping,
    Pong,
    Query,
    Ready,
    Subscribe,
    Unsubscribe,
    error_frame,
)


class ConnectionPhase(Enum):
    HELLO = "hello"
    READY = "ready"
    CLOSING = "closing"


class ConnectionTiming(msgspec.Struct, frozen=True, kw_only=True):
    """The time-outs and intervals of a connection, in seconds."""

    hello_s: float = 10.0
    heartbeat_s: float = 25.0
    silence_s: float = 35.0
    slow_reader_s: float = 30.0
    close_s: float = 5.0


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes that a connection may have, and its times."""

    frame_bytes_max: int = 4 * 1024 * 1024  # as for a request body: a message may be JSON with every letter escaped
    window_events: int = 1024
    window_bytes: int = 256 * 1024
    commands_max: int = 32  # commands without an answer yet
    subscriptions_max: int = 256
    timing: ConnectionTiming = ConnectionTiming()


# -- actions, besides the client frames themselves ---------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True):
    """Tells the shell to write this frame after everything written before."""

    message: msgspec.Struct


class Close(msgspec.Struct, frozen=True):
    """Tells the shell to send a close frame, and to read and discard until the peer closes or `Drop` comes."""

    code: int
    reason: str


class Drop(msgspec.Struct, frozen=True):
    """Tells the shell to cut the connection, because the peer did not finish closing."""


Request = Hello | Subscribe | Unsubscribe | Ack | Query | ClientCommand
Action = Send | Close | Drop | Request

_ALWAYS: Final = (Ping, Pong)
_LEGAL: Final[dict[ConnectionPhase, tuple[type[msgspec.Struct], ...]]] = {
    ConnectionPhase.HELLO: (Hello,),
    ConnectionPhase.READY: (Subscribe, Unsubscribe, Ack, *get_args(Query), *get_args(ClientCommand)),
    ConnectionPhase.CLOSING: (),
}
_COMMANDS: Final = (Subscribe, Unsubscribe, *get_args(Query), *get_args(ClientCommand))

_NEVER: Final = float("inf")


@dataclass(slots=True, eq=False, repr=False)
class Connection:
    """The protocol state of one connection. Methods return the actions that the shell carries out, in order."""

    encoding: Encoding
    limits: ConnectionLimits
    _since: float
    phase: ConnectionPhase = ConnectionPhase.HELLO
    window: Window = field(init=False)
    _heard_at: float = field(init=False)
    _wrote_at: float = field(init=False)
    _closing_since: float = field(init=False)
    _leave_at: float | None = None
    _stalled_since: float | None = None
    _pinged: bool = False
    _unanswered: int = 0

    def __post_init__(self) -> None:
        self.window = Window(self.limits.window_events, self.limits.window_bytes)
        self._heard_at = self._wrote_at = self._closing_since = self._since

    # -- what came in -----------------------------------------------------------------------------------------------

    def received(self, data: bytes | bytearray, binary: bool, now: float) -> list[Action]:
        """Takes one whole message and returns the actions that follow from it."""
        if self.phase is ConnectionPhase.CLOSING:
            return []
        self._heard_at = now
        self._pinged = False
        if binary is not self.encoding.binary:
            kind = "binary" if binary else "text"
            return self._close(errors.UNSUPPORTED_DATA, f"a {kind} message on {self.encoding.subprotocol}", now)
        try:
            frames = decode(data, self.encoding)
        except BadFrame as exc:
            return self.refuse(BadInput("bad_frame", exc.reason), now, exc.close)
        actions: list[Action] = []
        for frame in frames:
            actions += self._frame(frame, now)
            if self.phase is ConnectionPhase.CLOSING:
                break
            if isinstance(frame, Hello):
                self.phase = ConnectionPhase.READY  # the frames after it in this message are judged as after `ready`
        return actions

    def _frame(self, frame: Request | Ping | Pong | RefusedFrame, now: float) -> list[Action]:
        if isinstance(frame, RefusedFrame):
            if self.phase is ConnectionPhase.HELLO:
                return self.refuse(frame.error, now, errors.BAD_FRAME)
            return [Send(error_frame(frame.error, frame.id))]
        if isinstance(frame, _ALWAYS):
            return [Send(PONG)] if isinstance(frame, Ping) else []
        if not isinstance(frame, _LEGAL[self.phase]):
            if isinstance(frame, Hello):
                return self.refuse(BadInput("hello_repeated", "hello was sent before on this connection."), now)
            return self.refuse(BadInput("hello_expected", "The first message is hello."), now)
        if isinstance(frame, _COMMANDS):
            if self._unanswered >= self.limits.commands_max:
                return [Send(error_frame(_too_many(self.limits.commands_max), frame.id))]
            self._unanswered += 1
        return [frame]

    # -- what the shell reports -------------------------------------------------------------------------------------

    def accept(self, connection_id: str) -> Ready:
        """Returns the answer to a hello with valid credentials."""
        return Ready(
            connection=connection_id,
            heartbeat_ms=round(self.limits.timing.heartbeat_s * 1000),
            window_events=self.limits.window_events,
            window_bytes=self.limits.window_bytes,
        )

    def answered(self) -> None:
        """Notes that a command was answered: the answer is written, or queued after its events."""
        self._unanswered -= 1

    def wrote(self, now: float) -> None:
        """Notes that bytes were handed to the socket."""
        self._wrote_at = now

    def stalled(self, now: float) -> None:
        """Notes that the socket takes no more bytes, because its peer does not read."""
        self._stalled_since = now

    def flowing(self) -> None:
        """Notes that the socket takes bytes again."""
        self._stalled_since = None

    def goaway(self, reason: str, after_ms: int, now: float) -> list[Action]:
        """Announces that the server will close in `after_ms`; `tick` then closes with 1012."""
        if self.phase is ConnectionPhase.CLOSING or self._leave_at is not None:
            return []
        self._leave_at = now + after_ms / 1000
        return [Send(Goaway(reason=reason, after_ms=after_ms))]

    def closing(self, now: float) -> None:
        """Notes that the connection ends: the peer closes it, has violated the WebSocket protocol, or is gone."""
        self.phase = ConnectionPhase.CLOSING
        self._closing_since = now

    # -- time -------------------------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """Returns the time at which `tick` is due next. Events may make it earlier, never later."""
        timing = self.limits.timing
        if self.phase is ConnectionPhase.CLOSING:
            return self._closing_since + timing.close_s
        leave_at = _NEVER if self._leave_at is None else self._leave_at
        if self.phase is ConnectionPhase.HELLO:
            return min(self._since + timing.hello_s, leave_at)
        quiet = self._wrote_at if self._pinged else min(self._heard_at, self._wrote_at)
        return min(
            quiet + timing.heartbeat_s,
            self._heard_at + timing.silence_s,
            leave_at,
            self._slow_at(),
        )

    def tick(self, now: float) -> list[Action]:
        """Returns the actions that are due at this time; an empty list if none are."""
        timing = self.limits.timing
        if now < self.deadline():
            return []
        if self.phase is ConnectionPhase.CLOSING:
            return [Drop()]
        if self._leave_at is not None and now >= self._leave_at:
            return self._close(errors.RESTART, "the server goes away", now)
        if self.phase is ConnectionPhase.HELLO:
            error = Unauthorized("hello_timeout", f"No hello within {timing.hello_s:g} s.")
            return self.refuse(error, now)
        if now >= self._slow_at():
            return self.refuse(Unavailable("slow_reader", "Nothing was acknowledged; resume from the log."), now)
        if now >= self._heard_at + timing.silence_s:
            return self._close(errors.HEARTBEAT, "nothing was heard", now)
        self._pinged = True
        self._wrote_at = now
        return [Send(PING)]

    def _slow_at(self) -> float:
        full_since = self.window.full_since
        since = min(
            _NEVER if full_since is None else full_since,
            _NEVER if self._stalled_since is None else self._stalled_since,
        )
        return since + self.limits.timing.slow_reader_s

    # -- ending -----------------------------------------------------------------------------------------------------

    def refuse(self, error: SessileError, now: float, close: int | None = None) -> list[Action]:
        """Ends the connection with an error frame and a close code: `close`, else the error's own."""
        code = close or errors.row(error.code).close or errors.BAD_FRAME
        return [Send(error_frame(error)), *self._close(code, error.code, now)]

    def _close(self, code: int, reason: str, now: float) -> list[Action]:
        self.closing(now)
        return [Close(code, reason)]


def _too_many(commands_max: int) -> SessileError:
    return Limited(
        "rate_limited", f"More than {commands_max} commands of this connection are unanswered.", retry_after_ms=250
    )
