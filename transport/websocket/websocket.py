"""The WebSocket shell: an asyncio protocol between a socket, `websockets`' parser and the connection core.

uvicorn hands the socket over when it sees an upgrade (`ws=` takes any protocol class). There is no task per connection:
what comes in is carried out at once, commands run as tasks of the gateway, and everything written in one turn of the
loop leaves in one `transport.write`.

Invariants:
* Frames leave in the order in which they were appended to `_out`; nothing leaves after the close frame.
* While the peer does not read, neither do we: no cursor moves and no command is taken in, so what is kept for it is
  bounded by the socket's buffer, one share of `collect` and the answers to commands under way.
* Whatever ends the connection, its readers are released and its deadline is taken from the wheel.

Does not know what frames mean; see `transport.protocol.connection`. RFC 6455 is `websockets`' business.
"""

from __future__ import annotations

import asyncio
import logging
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, assert_never, cast

import structlog
from websockets.frames import Frame, Opcode
from websockets.http11 import Request as Handshake
from websockets.http11 import Response
from websockets.protocol import OPEN, SERVER, Protocol

from sessions.model.commands import ClientCommand
from sessions.model.errors import Internal, Limited, SessileError
from sessions.model.types import Principal
from transport.auth.connection_shares import ConnectionShares, Place
from transport.gateway import Gateway
from transport.protocol.connection import (
    Action,
    Close,
    Connection,
    ConnectionLimits,
    ConnectionPhase,
    Drop,
    Request,
    Send,
)
from transport.protocol.decoding import hello_credential
from transport.protocol.frames import (
    Ack,
    Done,
    Encoding,
    Hello,
    Query,
    SessionGet,
    SessionList,
    SessionSearch,
    Subscribe,
    Unsubscribe,
    error_frame,
)
from transport.reading.reader_set import ReaderSet
from transport.websocket.handshake import AgreedHandshake, HandshakeParser, redeem_ticket, refusal, retire, shake_hands
from transport.websocket.timer_wheel import TimerTarget, TimerWheel

SLICE_BYTES: Final = 16 * 1024  # taken in per turn of the loop, so that a flood from one does not hold up the rest
HELLO_BYTES_MAX: Final = 64 * 1024  # of the first message, from a peer whose key has not been looked at
DISCARD_BYTES_MAX: Final = 64 * 1024 * 1024  # read from a peer that was sent a close frame

log = structlog.get_logger(__name__)
_parser_log = logging.getLogger("transport.websocket.websocket.parser")
_parser_log.setLevel(logging.CRITICAL)  # it would write a line for every connection


class HeldConnection(TimerTarget, typing.Protocol):
    """A connection as its host knows it."""

    def flush(self, now: float) -> None: ...

    def goaway(self, reason: str, after_ms: int) -> None: ...

    def abort(self) -> None: ...


class ConnectionHost(typing.Protocol):
    """What the connections of a server share; `transport.websocket.connections` has it."""

    gateway: Gateway
    limits: ConnectionLimits
    loop: asyncio.AbstractEventLoop
    wheel: TimerWheel
    shares: ConnectionShares
    first_bytes: memoryview  # what first messages are read into

    @property
    def full(self) -> bool:
        """There is no room for one more."""
        ...

    @property
    def over_limit(self) -> bool: ...

    def opened(self, connection: HeldConnection) -> None: ...

    def closed(self, connection: HeldConnection) -> None: ...

    def flush_soon(self, connection: WebSocketConnection) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class WebSocketConnection(asyncio.Protocol):
    """One connection. Made on upgrade, and given the request's head by `shake_hands`."""

    _shared: ConnectionHost
    slot: int = 0
    _transport: asyncio.Transport = field(init=False)
    _ws: Protocol = field(default_factory=lambda: HandshakeParser(logger=_parser_log))
    _core: Connection | None = None
    _channel: ReaderSet | None = None
    _principal: Principal | None = None
    _unwatch: Callable[[], None] | None = None
    _place: Place | None = None  # where there are keys
    _client: str | None = None  # its address, where a proxy of ours says it
    _out: list[bytes] = field(default_factory=list)
    _scheduled: bool = False
    _paused: bool = False
    _unread: bytes | None = None
    _message: bytearray | None = None  # of a message in fragments
    _message_binary: bool = False
    _discarded: int = 0

    # -- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._shared.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.closed(self)
        if self._core is not None:
            self._core.closing(self._shared.loop.time())
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        if self._place is not None:
            self._place.close()
            self._place = None
        self._out.clear()
        self._unread = self._message = None
        retire(self._ws)

    def data_received(self, data: bytes) -> None:
        if self._unread is not None:
            self._unread += data
        elif len(data) > SLICE_BYTES:
            self._unread = data
            self._transport.pause_reading()
            self._next_slice()
        else:
            self._take_in(data)

    def _next_slice(self) -> None:
        data = self._unread
        if data is None or self._paused:
            return  # the connection is lost, or `resume_writing` comes back here
        self._unread = data[SLICE_BYTES:] or None
        if self._unread is not None:
            self._shared.loop.call_soon(self._next_slice)
        elif not self._transport.is_closing():
            self._transport.resume_reading()
        self._take_in(data[:SLICE_BYTES])

    def eof_received(self) -> bool:
        self._ws.receive_eof()
        return False

    def pause_writing(self) -> None:
        self._paused = True
        self._transport.pause_reading()
        if self._core is not None:
            self._core.stalled(self._shared.loop.time())
            self._time()
        if self._channel is not None:
            self._channel.stall()

    def resume_writing(self) -> None:
        self._paused = False
        if self._core is not None:
            self._core.flowing()
        if self._channel is not None:
            self._channel.flow()
        if self._unread is not None:
            self._shared.loop.call_soon(self._next_slice)
        elif not self._transport.is_closing():
            self._transport.resume_reading()
        self._wake()

    # -- in ---------------------------------------------------------------------------------------------------------

    def _take_in(self, data: bytes) -> None:
        ws = self._ws
        if ws.eof_sent:
            self._discarded += len(data)
            if self._discarded > DISCARD_BYTES_MAX:
                self._transport.abort()
                return
        ws.receive_data(data)
        for event in ws.events_received():
            if isinstance(event, Frame):
                self._ws_frame(event)
        if ws.writes:
            self._write_for_parser()

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
                return  # the parser has answered; a connection lives by the protocol's own ping
            case Opcode.CLOSE:
                if self._core is not None:
                    self._core.closing(self._shared.loop.time())
            case _:
                assert_never(frame.opcode)

    def _whole_message(self, data: Any, binary: bool) -> None:
        core = self._core
        if core is None or core.phase is ConnectionPhase.CLOSING:
            return
        now = self._shared.loop.time()
        if core.phase is ConnectionPhase.HELLO and not self._authenticate(core, data, now):
            return
        for action in core.received(data, binary, now):
            self._carry_out(action, now)
            if self._ws.state is not OPEN:
                return

    def _authenticate(self, core: Connection, data: Any, now: float) -> bool:
        """Looks at the key in a first message before anything else of it, where the handshake brought none."""
        access = self._shared.gateway.access
        if self._principal is None and not access.open:
            try:
                credential = hello_credential(data, core.encoding)
                principal = access.authenticate(credential, self._address(), with_body=True)
                self._let_in(principal)
                self._principal = principal
            except SessileError as error:
                for action in core.refuse(error, now):
                    self._carry_out(action, now)
                return False
        return True

    def _write_for_parser(self) -> None:
        """Writes what the parser wants sent (handshake, pong, close); its b"" means that nothing follows."""
        self._flush_out()
        for data in self._ws.data_to_send():
            if data:
                self._transport.write(data)
            else:
                self._finish()

    def _finish(self) -> None:
        """No byte of ours follows. The socket stays until the peer has had a chance to read the last ones: closing it
        with something unread in it would reset the connection and take our close frame with it."""
        core = self._core
        if self._channel is not None:
            self._channel.close()
        if core is None or self._ws.close_rcvd is not None or not self._transport.can_write_eof():
            self._transport.close()
            return
        core.closing(self._shared.loop.time())
        self._time()
        if not self._transport.is_closing():
            self._transport.write_eof()

    def shake_hands(self, request: Handshake) -> None:
        """Answers the handshake: called once, before any data."""
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
            response, agreed = shake_hands(ws, request, access, client)
            if agreed is not None and (agreed.principal is not None or access.open):
                self._let_in(agreed.principal)
        except SessileError as error:
            response, agreed = refusal(ws, error), None
        if agreed is None or agreed.ticket is None:
            self._answer_handshake(ws, response, agreed)
            return
        self._paused = True  # until it is redeemed nothing more is taken in
        self._transport.pause_reading()
        shared.gateway.tasks.start(self._redeem(ws, response, agreed))

    def _let_in(self, principal: Principal | None) -> None:
        """Its key is good, or there are none. Only now it counts among those that connect at once: strangers take
        nobody's turn. Raises Limited, Overloaded."""
        if self._place is not None:
            self._place.authenticated(principal)
        self._shared.gateway.check_connection_rate()

    async def _redeem(self, ws: HandshakeParser, response: Response, agreed: AgreedHandshake) -> None:
        """Answers a handshake that brought a ticket."""
        whose: AgreedHandshake | None = None
        try:
            whose = await redeem_ticket(agreed, self._shared.gateway.access, self._address())
            self._let_in(whose.principal)
        except SessileError as error:
            response, whose = refusal(ws, error), None
        except BaseException:
            self._transport.abort()  # the gateway ends, or a bug of ours: it would wait for ever
            raise
        if self._transport.is_closing():
            return  # the connection was lost meanwhile
        self._answer_handshake(ws, response, whose)
        self.resume_writing()

    def _answer_handshake(self, ws: HandshakeParser, response: Response, agreed: AgreedHandshake | None) -> None:
        ws.send_response(response)
        self._write_for_parser()
        if agreed is not None:
            self._agree(agreed.encoding, agreed.principal, self._shared.loop.time())
            self._shared.gateway.count("connections")

    def go_on(
        self,
        transport: asyncio.Transport,
        encoding: Encoding,
        principal: Principal | None,
        client: str | None,
        place: Place | None,
        since: float,
    ) -> None:
        """Takes over a connection whose handshake was answered at `since`, with what came behind it still to be handed
        in. `principal`: whose key the first message has; None: that is not known yet."""
        self._transport = transport
        self._client = client
        self._place = place
        self._agree(encoding, principal, since)

    def _agree(self, encoding: Encoding, principal: Principal | None, since: float) -> None:
        shared = self._shared
        # The handshake's parser holds on to the request for life. Frames need less.
        retire(self._ws)
        known = principal is not None or shared.gateway.access.open
        size = shared.limits.frame_bytes_max if known else min(HELLO_BYTES_MAX, shared.limits.frame_bytes_max)
        self._ws = Protocol(SERVER, state=OPEN, max_size=size, logger=_parser_log)
        self._principal = principal
        self._core = Connection(encoding, shared.limits, since)
        self._time()

    # -- carrying out -----------------------------------------------------------------------------------------------

    def _carry_out(self, action: Action, now: float) -> None:
        core = self._core
        assert core is not None
        match action:
            case Send():
                self._out.append(core.encoding.frame(action.message))
                self._wake()
            case Close():
                self._close(action)
            case Drop():
                self._transport.abort()
            case Hello():
                self._greet(action, now)
            case _:
                self._request(action, now)

    def _close(self, action: Close) -> None:
        if self._ws.state is not OPEN:
            return
        self._flush_out()
        if self._channel is not None:
            self._channel.close()
        self._shared.gateway.count(f"closed_{action.code}")
        if self._unwatch is not None:  # strangers are counted, and write no lines into the log
            log.info("connection_closed", code=action.code, reason=action.reason)
        self._ws.send_close(action.code, action.reason[:100])
        self._write_for_parser()
        self._time()

    def _greet(self, hello: Hello, now: float) -> None:
        core, gateway = self._core, self._shared.gateway
        assert core is not None
        try:
            gateway.check_draining()
            principal = self._principal or gateway.access.authenticate(hello.auth, self._address())
            self._unwatch = gateway.access.watch(principal, self._credential_ended)
            self._ws.max_message_size = core.limits.frame_bytes_max
        except SessileError as error:
            for action in core.refuse(error, now):
                self._carry_out(action, now)
            return
        self._principal = principal
        channel = self._channel = ReaderSet(
            gateway, principal, core.encoding, core.window, self._out, self._wake, self._shared.loop.time
        )
        channel.write(core.accept(gateway.new_id()))
        subscriptions_max = core.limits.subscriptions_max
        for point in hello.resume[:subscriptions_max]:
            channel.subscribe(point)
        for point in hello.resume[subscriptions_max:]:
            channel.refuse(point.session, too_many_subscriptions(subscriptions_max))

    def _credential_ended(self, error: SessileError) -> None:
        """Its key was revoked, its token has expired: nothing more is shown or taken in."""
        core, now = self._core, self._shared.loop.time()
        if core is not None and core.phase is not ConnectionPhase.CLOSING:
            for action in core.refuse(error, now):
                self._carry_out(action, now)

    def _address(self) -> str | None:
        if self._client is not None:
            return self._client
        peer = self._transport.get_extra_info("peername")
        return peer[0] if isinstance(peer, tuple) else None

    def _request(self, request: Request, now: float) -> None:
        core, channel = self._core, self._channel
        assert core is not None and channel is not None
        match request:
            case Ack():
                channel.ack(request.session, request.offset, now)
            case Subscribe():
                core.answered()
                subscriptions_max = core.limits.subscriptions_max
                if request.session not in channel.readers and len(channel.readers) >= subscriptions_max:
                    channel.write(error_frame(too_many_subscriptions(subscriptions_max), request.id))
                    return
                channel.write(Done(id=request.id))
                channel.subscribe(request)
            case Unsubscribe():
                core.answered()
                channel.unsubscribe(request.session)
                channel.write(Done(id=request.id))
            case Hello():
                raise AssertionError("carried out elsewhere")
            case _:
                assert self._principal is not None
                self._shared.gateway.tasks.start(self._run(request, core, channel, self._principal))

    async def _run(
        self,
        request: Query | ClientCommand,
        core: Connection,
        channel: ReaderSet,
        principal: Principal,
    ) -> None:
        """Carries out one command and writes its answer where it belongs between the events. The connection may be
        lost before this begins: the command is carried out all the same (I5)."""
        gateway = self._shared.gateway
        try:
            match request:
                case SessionGet():
                    async with channel.turn():
                        channel.write(await gateway.get(principal, request.id, request.session))
                case SessionList():
                    async with channel.turn():
                        channel.write(await gateway.list(principal, request.id, request.limit, request.after))
                case SessionSearch():
                    found = await gateway.search(principal, request.id, request.q, request.limit, request.after)
                    async with channel.turn():
                        channel.write(found)
                case _:
                    done = await gateway.execute(principal, request)
                    channel.answer(done, done.session or request.session, done.offset)
        except SessileError as error:
            channel.write(error_frame(error, request.id))
        except Exception:
            log.exception("command_failed", command=type(request).__name__, id=request.id)
            failure = Internal("internal_error", "The server failed to carry this out.")
            channel.write(error_frame(failure, request.id))
        finally:
            core.answered()

    # -- out --------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._shared.flush_soon(self)

    def flush(self, now: float) -> None:
        """Takes what its readers have and hands everything to the socket, once a turn."""
        self._scheduled = False
        core, channel = self._core, self._channel
        if core is None or core.phase is ConnectionPhase.CLOSING:
            self._out.clear()
            return
        if channel is not None and not self._paused and channel.collect(now):
            self._wake()
        if self._out:
            self._flush_out()
            core.wrote(now)
        if core.window.full_since is not None:
            self._time()

    def _flush_out(self) -> None:
        out = self._out
        if out:
            if not self._transport.is_closing():
                self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()

    # -- time and the end -------------------------------------------------------------------------------------------

    def _time(self) -> None:
        self._shared.wheel.put(self)

    def due(self) -> float:
        assert self._core is not None
        return self._core.deadline()

    def elapsed(self, now: float) -> None:
        """Called by the wheel."""
        assert self._core is not None
        for action in self._core.tick(now):
            self._carry_out(action, now)
        if not self._transport.is_closing():
            self._time()

    def goaway(self, reason: str, after_ms: int) -> None:
        if self._core is not None:
            now = self._shared.loop.time()
            for action in self._core.goaway(reason, after_ms, now):
                self._carry_out(action, now)
            self._time()

    def abort(self) -> None:
        self._transport.abort()


def too_many_subscriptions(subscriptions_max: int) -> Limited:
    return Limited("too_many_subscriptions", f"One connection reads at most {subscriptions_max} sessions.")
