"""The WebSocket door of the session protocol: carries out what the connection core decides.

uvicorn hands the socket over when it sees an upgrade (`ws=` takes any protocol class). There is no task per connection:
what comes in is carried out at once, commands run as tasks of the gateway, and everything written in one turn of the
loop leaves in one `transport.write`.

Invariants:
* Frames leave in the order in which they were appended to `_out`; nothing leaves after the close frame.
* While the peer does not read, no cursor moves and no command is taken in, so what is kept for it is bounded by the
  socket's buffer, one share of `collect` and the answers to commands under way.
* Whatever ends the connection, its readers are released and its deadline is taken from the wheel.

Does not know what frames mean; see `transport.protocol.connection`. The socket itself is
`transport.websocket.upgraded`'s business.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import structlog
from websockets.protocol import OPEN

from sessions.model.commands import ClientCommand, ResponseCancel
from sessions.model.errors import Internal, Limited, Overloaded, SessileError
from sessions.model.types import Principal
from transport.auth.connection_shares import Place
from transport.protocol.connection import Action, Close, Connection, ConnectionPhase, Drop, Request, Send
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
from transport.quotas import Arrival
from transport.reading.reader_set import ReaderSet
from transport.websocket.deflate import deflated
from transport.websocket.handshake import AgreedHandshake
from transport.websocket.upgraded import UpgradedConnection

HELLO_BYTES_MAX: Final = 64 * 1024  # of the first message, from a peer whose key is not checked yet

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False, repr=False)
class WebSocketConnection(UpgradedConnection):
    """One connection of the session protocol."""

    DEFLATES: ClassVar[bool] = True

    _core: Connection | None = None
    _channel: ReaderSet | None = None
    _out: list[bytes] = field(default_factory=list)
    _scheduled: bool = False

    # -- hooks of the socket ------------------------------------------------------------------------------------------

    def _lost(self) -> None:
        if self._core is not None:
            self._core.closing(self._shared.loop.time())
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._out.clear()

    def _stalled(self) -> None:
        if self._core is not None:
            self._core.stalled(self._shared.loop.time())
            self._time()
        if self._channel is not None:
            self._channel.stall()

    def _flowing(self) -> None:
        if self._core is not None:
            self._core.flowing()
        if self._channel is not None:
            self._channel.flow()
        self._wake()

    def _closing(self) -> None:
        if self._core is not None:
            self._core.closing(self._shared.loop.time())

    def _finish(self) -> None:
        """Ends writing. The socket stays open until the peer has had a chance to read the last bytes."""
        if self._channel is not None:
            self._channel.close()
        if self._core is None or self._ws.close_rcvd is not None or not self._transport.can_write_eof():
            self._transport.close()
        else:
            self._half_close()

    def _agreed(self, agreed: AgreedHandshake) -> None:
        self._agree(agreed.encoding, agreed.principal, self._shared.loop.time())

    # -- in -----------------------------------------------------------------------------------------------------------

    def _end_overloaded(self, error: Overloaded) -> None:
        core = self._core
        if core is None:
            self._transport.abort()
        elif core.phase is not ConnectionPhase.CLOSING:
            for action in core.refuse(error, self._shared.loop.time()):
                self._carry_out(action, self._shared.loop.time())

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
        """Checks the key in a first message before anything else of it, unless the handshake had one. Returns whether
        the connection goes on."""
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

    def go_on(
        self,
        transport: asyncio.Transport,
        encoding: Encoding,
        principal: Principal | None,
        client: str | None,
        place: Place | None,
        since: float,
    ) -> None:
        """Takes over a connection whose handshake was answered at `since`; later bytes are handed in next. `principal`
        is the first message's, if its key was checked already."""
        self._transport = transport
        self._client = client
        self._place = place
        self._agree(encoding, principal, since)

    def _agree(self, encoding: Encoding, principal: Principal | None, since: float) -> None:
        shared = self._shared
        known = principal is not None or shared.gateway.access.open
        size = shared.limits.frame_bytes_max if known else min(HELLO_BYTES_MAX, shared.limits.frame_bytes_max)
        self._read_frames(size)
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
        channel.rollup_s = hello.rollup_ms / 1000
        channel.write(core.accept(gateway.new_id()))
        subscriptions_max = core.limits.subscriptions_max
        for point in hello.resume[:subscriptions_max]:
            channel.subscribe(point)
        for point in hello.resume[subscriptions_max:]:
            channel.refuse(point.session, too_many_subscriptions(subscriptions_max))

    def _credential_ended(self, error: SessileError) -> None:
        """Closes the connection because its key was revoked or its token has expired."""
        core, now = self._core, self._shared.loop.time()
        if core is not None and core.phase is not ConnectionPhase.CLOSING:
            for action in core.refuse(error, now):
                self._carry_out(action, now)

    def _request(self, request: Request, now: float) -> None:
        core, channel = self._core, self._channel
        assert core is not None and channel is not None
        match request:
            case Ack():
                channel.ack(request.session, request.offset, now)
            case Subscribe() if self._refuses(request):
                core.answered()
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
                if self._refuses(request):
                    core.answered()
                    return
                self._shared.gateway.tasks.start(self._run(request, core, channel, self._principal))

    def _refuses(self, request: Subscribe | Query | ClientCommand) -> bool:
        """Counts a command for its key; if the key has no requests left, answers the command with an error. Returns
        whether it did."""
        assert self._channel is not None
        try:
            self._arrived(Arrival(is_exempt=isinstance(request, ResponseCancel)))
        except Limited as error:
            self._channel.write(error_frame(error, request.id))
            return True
        return False

    async def _run(
        self,
        request: Query | ClientCommand,
        core: Connection,
        channel: ReaderSet,
        principal: Principal,
    ) -> None:
        """Carries out one command and writes its answer in its place among the events. If the connection is lost before
        this begins the command is carried out all the same (I5)."""
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
                    listed = await gateway.search(principal, request.id, request.q, request.limit, request.after)
                    async with channel.turn():
                        channel.write(listed)
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
        """Takes frames from the readers and writes all that is due to the socket; once per turn of the loop."""
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
            if self._ws.extensions:
                out[:] = [deflated(frame, self._ws.extensions) for frame in out]
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
        """Carries out what the core finds due. The timer wheel calls this."""
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


def too_many_subscriptions(subscriptions_max: int) -> Limited:
    return Limited("too_many_subscriptions", f"One connection reads at most {subscriptions_max} sessions.")
