"""The part of a WebSocket that every door shares: an asyncio protocol between a socket and `websockets`' parser.

It answers the handshake (`transport.websocket.handshake`), takes its place among a principal's connections, cuts what
comes in into whole messages, a slice per turn of the loop, and writes what the parser wants written. What messages
mean, and what is written otherwise, is a subclass's business, which gives the hooks below their bodies.

Invariants: nothing is taken in before the handshake is answered; while the peer does not read, neither do we; a message
beyond `_ws.max_message_size` is not kept, and what all connections keep of large ones is bounded (`MESSAGE_BYTES_MAX`).
RFC 6455 is `websockets`' business.
"""

from __future__ import annotations

import asyncio
import logging
import typing
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, assert_never, cast

from websockets.frames import Frame, Opcode
from websockets.http11 import Request as Handshake
from websockets.http11 import Response
from websockets.protocol import OPEN, SERVER, Protocol

from sessions.model.errors import Limited, Overloaded, SessileError
from sessions.model.types import Principal
from transport.arrival_pace import WAIT_MAX_S
from transport.auth.connection_shares import ConnectionShares, Place
from transport.gateway import Gateway
from transport.http.timer_wheel import TimerTarget, TimerWheel
from transport.protocol.connection import ConnectionLimits
from transport.quotas import Arrival
from transport.websocket.deflate import DEFLATE, DEFLATING_MAX, wants_deflate
from transport.websocket.handshake import (
    PATH,
    AgreedHandshake,
    HandshakeParser,
    redeem_ticket,
    refusal,
    retire,
    shake_hands,
)

SLICE_BYTES: Final = 16 * 1024  # taken in per turn of the loop, so that a flood from one peer does not hold up the rest
DISCARD_BYTES_MAX: Final = 64 * 1024 * 1024  # read after our close frame
MESSAGE_BYTES_MAX: Final = 256 * 1024 * 1024  # of messages that all connections keep; beyond it large ones are refused
LARGE_BYTES: Final = 64 * 1024  # of messages of one connection; up to this none is refused
OPENING: Final = Arrival(cost=0.4)  # the cost of opening a connection
FRAME_WEIGHT: Final = 0.01  # of a request, for any frame
FRAME_COST: Final = 0.02
SLOW_FRAME_S: Final = 0.02  # how long a frame of a key without requests stops the reading at most

_parser_log = logging.getLogger("transport.websocket.upgraded.parser")
_parser_log.setLevel(logging.CRITICAL)  # it would write a line for every connection


class HeldConnection(TimerTarget, typing.Protocol):
    """A WebSocket connection as `WebSocketConnections` sees it."""

    def flush(self, now: float) -> None: ...

    def goaway(self, reason: str, after_ms: int) -> None: ...

    def abort(self) -> None: ...


class ConnectionHost(typing.Protocol):
    """The state and services that the connections of a server share; `transport.websocket.connections` implements
    it."""

    gateway: Gateway
    limits: ConnectionLimits
    loop: asyncio.AbstractEventLoop
    wheel: TimerWheel
    shares: ConnectionShares
    first_bytes: memoryview  # the buffer that first messages are read into
    deflating: int  # number of connections that compress
    message_bytes: int  # bytes of incomplete or waiting messages, over all connections

    @property
    def full(self) -> bool:
        """Whether there is no room for another connection."""
        ...

    @property
    def over_limit(self) -> bool: ...

    def opened(self, connection: HeldConnection) -> None: ...

    def closed(self, connection: HeldConnection) -> None: ...

    def flush_soon(self, connection: HeldConnection) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class UpgradedConnection(asyncio.Protocol):
    """One WebSocket connection. Made on upgrade; `shake_hands` gives it the request's head. It has many fields because
    one object implements asyncio's protocol, the websockets library's and the timers': there are very many connections,
    and another object for each would cost memory."""

    PATH: ClassVar[str] = PATH
    DEFLATES: ClassVar[bool] = False  # compresses if the client asks for it

    _shared: ConnectionHost
    slot: int = 0
    _transport: asyncio.Transport = field(init=False)
    _ws: Protocol = field(default_factory=lambda: HandshakeParser(logger=_parser_log))
    _principal: Principal | None = None
    _unwatch: Callable[[], None] | None = None
    _place: Place | None = None  # only with authentication
    _client: str | None = None  # its address, if a proxy of ours names it
    _deflates: bool = False
    _paused: bool = False
    _waits: bool = False  # reads nothing until its key's turn comes
    _unread: bytes | None = None
    _message: bytearray | None = None  # of a message in several frames, so far
    _message_binary: bool = False
    _counted_bytes: int = 0  # this connection's share of `message_bytes`
    _discarded: int = 0

    # -- what a door does ---------------------------------------------------------------------------------------------

    def _check(self, agreed: AgreedHandshake) -> None:
        """Raises SessileError if this door does not accept what the handshake agreed on."""

    @abstractmethod
    def _agreed(self, agreed: AgreedHandshake) -> None:
        """Prepares `_ws` to parse frames after the handshake was answered."""

    @abstractmethod
    def _whole_message(self, data: Any, binary: bool) -> None: ...

    @abstractmethod
    def _closing(self) -> None:
        """Notes that the peer closes or that nothing more is written. From now on `due` returns the time at which the
        connection is cut."""

    @abstractmethod
    def _lost(self) -> None:
        """Notes that the connection is lost."""

    @abstractmethod
    def _end_overloaded(self, error: Overloaded) -> None:
        """Ends this connection with an error, because all connections together keep too many message bytes and this one
        keeps a large part of them."""

    def _held(self) -> int:
        """Returns how many bytes of whole messages this connection keeps."""
        return 0

    @abstractmethod
    def _flush_out(self) -> None:
        """Writes the frames that must be sent before those of the parser."""

    @abstractmethod
    def _stalled(self) -> None:
        """Notes that the socket takes no more bytes, because its peer does not read."""

    @abstractmethod
    def _flowing(self) -> None: ...

    @abstractmethod
    def due(self) -> float: ...

    @abstractmethod
    def elapsed(self, now: float) -> None: ...

    @abstractmethod
    def flush(self, now: float) -> None: ...

    @abstractmethod
    def goaway(self, reason: str, after_ms: int) -> None: ...

    # -- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._shared.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.closed(self)
        self._lost()
        self._shared.deflating -= self._deflates
        self._deflates = False
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        if self._place is not None:
            self._place.close()
            self._place = None
        self._unread = self._message = None
        self._shared.message_bytes -= self._counted_bytes
        self._counted_bytes = 0
        retire(self._ws)

    def data_received(self, data: bytes) -> None:
        if self._unread is not None:
            self._unread += data
        elif self._waits:
            self._unread = data
        elif len(data) > SLICE_BYTES:
            self._unread = data
            self._transport.pause_reading()
            self._next_slice()
        else:
            self._take_in(data)

    def _next_slice(self) -> None:
        data = self._unread
        if data is None or self._paused or self._waits:
            return  # the connection is lost, or `_go_on` comes back here
        self._unread = data[SLICE_BYTES:] or None
        self._go_on()
        self._take_in(data[:SLICE_BYTES])

    def _go_on(self) -> None:
        """Continues to read, unless the socket is paused or an arrival of the key has to wait for its turn."""
        if self._paused or self._waits:
            return
        if self._unread is not None:
            self._shared.loop.call_soon(self._next_slice)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def _arrived(self, arrival: Arrival) -> None:
        """Counts an arrival for the connection's key, and stops reading until its turn. Raises Limited."""
        if self._principal is not None:
            self._wait(self._shared.gateway.pace_arrival(self._principal, arrival))

    def _wait(self, wait_s: float) -> None:
        if wait_s and not self._waits and not self._transport.is_closing():
            self._waits = True
            self._transport.pause_reading()
            self._shared.loop.call_later(wait_s, self._end_wait)

    def _end_wait(self) -> None:
        self._waits = False
        self._go_on()

    def eof_received(self) -> bool:
        self._ws.receive_eof()
        return False

    def pause_writing(self) -> None:
        self._paused = True
        self._transport.pause_reading()
        self._stalled()

    def resume_writing(self) -> None:
        self._paused = False
        self._flowing()
        self._go_on()

    # -- in ---------------------------------------------------------------------------------------------------------

    def _take_in(self, data: bytes) -> None:
        ws = self._ws
        if ws.eof_sent:
            self._discarded += len(data)
            if self._discarded > DISCARD_BYTES_MAX:
                self._transport.abort()
                return
        ws.receive_data(data)
        frames = ws.events_received()
        if frames and ws.state is OPEN:
            try:
                self._arrived(Arrival(FRAME_WEIGHT * len(frames), FRAME_COST * len(frames)))
            except Limited as error:  # what has arrived is still taken in
                wait_s = min((error.retry_after_ms or 0) / 1000, WAIT_MAX_S)
                if error.param is not None:  # commands are refused one by one, and a cancel may be behind them
                    wait_s = min(wait_s, SLOW_FRAME_S * len(frames))
                self._wait(wait_s)
        for event in frames:
            if isinstance(event, Frame):
                self._ws_frame(event)
        if ws.writes:
            self._write_for_parser()
        self._count_bytes()
        over = self._counted_bytes > LARGE_BYTES and self._shared.message_bytes > MESSAGE_BYTES_MAX
        if over and self._ws.state is OPEN:
            self._end_overloaded(too_many_messages())

    def _count_bytes(self) -> None:
        kept = len(self._ws.reader.buffer) + len(self._message or b"") + self._held()
        self._shared.message_bytes += kept - self._counted_bytes
        self._counted_bytes = kept

    def _ws_frame(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.TEXT | Opcode.BINARY:
                binary = frame.opcode is Opcode.BINARY
                if frame.fin:
                    self._whole_message(frame.data, binary)
                else:
                    self._message, self._message_binary = bytearray(frame.data), binary
            case Opcode.CONT:
                assert self._message is not None
                self._message += frame.data
                if frame.fin:
                    data, self._message = self._message, None
                    self._whole_message(data, self._message_binary)
            case Opcode.PING | Opcode.PONG:
                return  # the parser answers by itself
            case Opcode.CLOSE:
                self._closing()
            case _:
                assert_never(frame.opcode)

    def _write_for_parser(self) -> None:
        """Writes what the parser has to send (handshake, pong, close frame). An empty piece from the parser means that
        nothing follows; writing then ends."""
        self._flush_out()
        for data in self._ws.data_to_send():
            if data:
                self._transport.write(data)
            else:
                self._finish()

    @abstractmethod
    def _finish(self) -> None:
        """Ends writing: nothing is sent after this."""

    def _half_close(self) -> None:
        """Closes our direction only, so that the peer can read the last bytes: closing a socket that has unread data
        resets the connection, and the close frame would be lost."""
        self._closing()
        self._shared.wheel.put(self)
        if not self._transport.is_closing():
            self._transport.write_eof()

    # -- the handshake ----------------------------------------------------------------------------------------------

    def shake_hands(self, request: Handshake) -> None:
        """Answers the handshake. Called once, before any data."""
        ws, shared = self._ws, self._shared
        assert isinstance(ws, HandshakeParser)
        agreed: AgreedHandshake | None = None
        try:
            shared.gateway.check_draining()
            if shared.over_limit:
                shared.gateway.count("connections_refused")
                raise Limited("rate_limited", "Too many connections.", retry_after_ms=5000)
            access, peer = shared.gateway.access, self._address()
            client = access.origins.proxies.client(peer, request.headers.get_all("X-Forwarded-For"))
            self._client = None if client == peer else client
            if not access.open:
                self._place = shared.shares.open(client, plain=False)
            if self.DEFLATES and shared.deflating < DEFLATING_MAX and wants_deflate(request.path):
                ws.available_extensions = [DEFLATE]
            response, agreed = shake_hands(ws, request, access, client, path=self.PATH)
            if agreed is not None and agreed.ticket is None:
                self._check(agreed)
            if agreed is not None and (agreed.principal is not None or access.open):
                self._let_in(agreed.principal)
        except SessileError as error:
            response, agreed = refusal(ws, error), None
        if agreed is None or agreed.ticket is None:
            self._answer_handshake(ws, response, agreed)
            return
        self._paused = True  # nothing more is read until the ticket is redeemed
        self._transport.pause_reading()
        shared.gateway.tasks.start(self._redeem(ws, response, agreed))

    def _let_in(self, principal: Principal | None) -> None:
        """Admits a connection with a valid key, or without keys. Only now it counts as a new one, so that strangers
        take nobody's turn. Raises Limited, Overloaded."""
        if self._place is not None:
            self._place.authenticated(principal)
        self._shared.gateway.check_connection_rate()
        if principal is not None:
            self._wait(self._shared.gateway.pace_arrival(principal, OPENING))

    async def _redeem(self, ws: HandshakeParser, response: Response, agreed: AgreedHandshake) -> None:
        """Answers a handshake that has a ticket."""
        whose: AgreedHandshake | None = None
        try:
            whose = await redeem_ticket(agreed, self._shared.gateway.access, self._address())
            self._check(whose)
            self._let_in(whose.principal)
        except SessileError as error:
            response, whose = refusal(ws, error), None
        except BaseException:
            self._transport.abort()  # the gateway ends, or a bug: the client would wait for ever
            raise
        if self._transport.is_closing():
            return  # the connection was lost meanwhile
        self._answer_handshake(ws, response, whose)
        self.resume_writing()

    def _answer_handshake(self, ws: HandshakeParser, response: Response, agreed: AgreedHandshake | None) -> None:
        ws.send_response(response)
        self._write_for_parser()
        if agreed is not None:
            self._agreed(agreed)
            self._shared.gateway.count("connections")

    def _read_frames(self, bytes_max: int) -> None:
        """Replaces the handshake's parser, which keeps the request for life, by a smaller one for frames."""
        extensions = self._ws.extensions
        if extensions:
            self._deflates = True
            self._shared.deflating += 1
        retire(self._ws)
        self._ws = Protocol(SERVER, state=OPEN, max_size=bytes_max, logger=_parser_log)
        self._ws.extensions = extensions

    def _address(self) -> str | None:
        if self._client is not None:
            return self._client
        peer = self._transport.get_extra_info("peername")
        return peer[0] if isinstance(peer, tuple) else None

    def abort(self) -> None:
        self._transport.abort()


def too_many_messages() -> Overloaded:
    return Overloaded("overloaded", "Too many large messages are under way.", retry_after_ms=5000)
