"""Limits uvicorn's HTTP connections: sizes and times of a request's head and body, before authentication.

A connection begins as a `FirstHead`: a buffer that all of them share, a place and a deadline. What it reads first is
either refused there, or handed to an `HttpConnection`, which has a parser and much else, and costs twice what a whole
refusal does.

A request's head must be complete within `head_s` and `head_bytes_max`, its body within `body_s`; a connection that does
neither is answered with 408 or 431, or just closed. One that takes nothing of its answer for `write_s` is cut. Idle
keep-alive is uvicorn's own `timeout_keep_alive`.

An `Upgrade` that is not taken is no upgrade (RFC 9110, 7.8): the request is parsed again without that field, as
ordinary HTTP with its body. httptools would take its body for the next request.

Does not know requests; the size of bodies is `transport.http_api.app`'s business.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast
from urllib.parse import unquote

import httptools
import uvicorn
import websockets
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState
from websockets.http11 import Request as Handshake

from sessions.model.errors import SessileError, Unavailable
from transport.addresses import joined, listened_hosts
from transport.auth.connection_shares import PLACE, ConnectionShares, Place
from transport.http.middleware import REFUSED, Scope
from transport.http.request_head import Gate, plain_head
from transport.http.timer_wheel import TimerWheel

PORTS_TRIED: Final = 8  # ports, until one is free for both address families
FIRST_BYTES: Final = 16 * 1024  # read at once from a peer that has shown nothing yet
KEEP_ALIVE_S: Final = 75.0  # longer than balancers' 60 s: if we close first, a request may be lost
HEAD_BYTES_MAX: Final = 32 * 1024
HEAD_S: Final = 10.0
BODY_S: Final = 60.0
WRITE_S: Final = 60.0  # without a byte taken by the client
DISCARD_BYTES_MAX: Final = 64 * 1024  # read of the body of a refused request; then the connection is closed
LINGER_S: Final = 1.0
HALF_CLOSED_S: Final = 1.0  # for the answer to begin, if a client closes its side behind a request
CONNECTIONS_MAX: Final = 1024  # plain HTTP ones at a time; WebSockets leave this count when they upgrade


class WebSocketDoor(Protocol):
    """Takes connections that become WebSockets; `transport.websocket.connections` implements it."""

    def protocol(self, path: str = "", host: str = "", **_: Any) -> asyncio.Protocol:
        """Returns a connection for `path` at `host` whose handshake is still to be answered."""

    def begin(
        self, head: Scope, transport: asyncio.BaseTransport, peer: str | None, place: Place | None
    ) -> asyncio.BufferedProtocol | None:
        """Answers a handshake without a credential, given its `plain_head`. Returns the protocol that reads on and
        owns `place`; None if the handshake must be checked and parsed. Raises SessileError if it is refused."""


@dataclass(slots=True, eq=False, repr=False)
class Listening:
    """The state that the connections of one port share."""

    config: uvicorn.Config
    state: ServerState
    shares: ConnectionShares
    gate: Gate | None
    door: WebSocketDoor | None
    loop: asyncio.AbstractEventLoop
    wheel: TimerWheel
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(FIRST_BYTES)))
    discard: memoryview = field(default_factory=lambda: memoryview(bytearray(DISCARD_BYTES_MAX)))


class FirstHead(asyncio.BufferedProtocol):
    """A connection of which nothing was read yet. It reads no more of a body than what came with its head."""

    __slots__ = ("_due_at", "_first", "_left", "_place", "_shared", "client", "slot", "transport")

    transport: asyncio.Transport
    client: tuple[str, int] | None
    _left: int | None  # bytes of a refused request's body still to be discarded; None if nothing is refused

    def __init__(self, shared: Listening) -> None:
        self._shared = shared
        self.slot = 0
        self._place: Place | None = None
        self._due_at = 0.0
        self._left = None
        self._first: asyncio.BufferedProtocol | None = None  # reads on after a handshake was answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        shared = self._shared
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.client = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None
        try:
            self._place = shared.shares.open(None if self.client is None else self.client[0], plain=True)
        except SessileError as error:
            self._close(plain_answer(b"503 Service Unavailable", error.public_message.encode()))
            return
        if len(shared.state.connections) >= CONNECTIONS_MAX:
            self._close(plain_answer(b"503 Service Unavailable", b"Too many connections."))
            return
        shared.state.connections.add(self)  # type: ignore[arg-type]  # it has the methods that are called
        self._due_at = shared.loop.time() + HEAD_S
        shared.wheel.put(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._first is not None:
            self._first.connection_lost(exc)
            return
        self._leave()
        if self._place is not None:
            self._place.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._first is not None:
            return cast(memoryview, self._first.get_buffer(sizehint))
        return self._shared.buffer if self._left is None else self._shared.discard

    def buffer_updated(self, nbytes: int) -> None:
        if self._first is not None:
            self._first.buffer_updated(nbytes)
            return
        shared = self._shared
        if self._left is not None:
            self._left -= nbytes
            if self._left <= 0:
                self.transport.close()
            return
        data = bytes(shared.buffer[:nbytes])
        head = None if shared.gate is None else plain_head(data)
        if shared.gate is not None and head is not None:
            head["client"] = self.client
            door = shared.door if head["upgrade"] and not head["left"] else None
            if door is not None and self._begins(head, door, shared.gate):
                return
            refused = shared.gate.refused(head)
            if refused is not None:
                self._refuse(refused, head["left"])
                return
            if door is not None:
                self._leave()
                if self._place is not None:
                    self._place.close()  # a WebSocket has one of its own
                    self._place = None
                open_websocket(door, self.transport, head["raw_path"].decode("ascii"), head["method"], head["headers"])
                return
        self._leave()
        connection = HttpConnection(shared, self._place)
        self._place = None
        connection.connection_made(self.transport)
        self.transport.set_protocol(connection)
        connection.data_received(data)

    def _begins(self, head: Scope, door: WebSocketDoor, gate: Gate) -> bool:
        """Answers or refuses a handshake that has no credential. Returns whether it did; False for every other
        request."""
        try:
            peer = None if self.client is None else self.client[0]
            self._first = door.begin(head, self.transport, peer, self._place)
        except SessileError as error:
            self._close(gate.answer(head, error, close=True))
            return True
        if self._first is not None:
            self._place = None
            self._leave()
        return self._first is not None

    def _refuse(self, answer: bytes, left: int) -> None:
        if left <= 0:
            self._close(answer)
            return
        self.transport.write(answer)
        self._left = left
        if left > DISCARD_BYTES_MAX:
            self.transport.pause_reading()
        self._due_at = self._shared.loop.time() + LINGER_S
        self._shared.wheel.put(self)

    def _close(self, answer: bytes) -> None:
        self._left = 0
        self.transport.write(answer)
        self.transport.close()

    def due(self) -> float:
        return self._due_at

    def elapsed(self, now: float) -> None:
        """Closes the connection because its request did not come in time. The timer wheel calls this."""
        if self._left is None:
            self._close(plain_answer(b"408 Request Timeout", b"The request did not come in time."))
        else:
            self.transport.close()

    def _leave(self) -> None:
        """Removes this connection from those that wait for a request's head."""
        self._shared.state.connections.discard(self)
        self._shared.wheel.take(self)

    def shutdown(self) -> None:
        """Closes the connection when the server stops; named as uvicorn's own."""
        self.transport.close()


class HttpConnection(HttpToolsProtocol):
    """One HTTP connection, until it closes or becomes a WebSocket."""

    _deadline: asyncio.TimerHandle | None = None
    _unsent: asyncio.TimerHandle | None = None  # runs while the client has bytes to take
    _head_bytes = 0
    _head_done = False
    _discarded = 0  # bytes of the body of a request that was answered without it
    _answered = False  # by the gate; the body, if any, is still to be discarded
    _refused = False
    _declined = False  # the upgrade that the head requests; the head is parsed again without it
    _answering: RequestResponseCycle | None = None  # uvicorn's `cycle` is the newest that was read, maybe one behind it

    def __init__(self, shared: Listening, place: Place | None) -> None:
        super().__init__(shared.config, shared.state, {}, shared.loop)
        self._gate = shared.gate
        self._door = shared.door
        self._place = place

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._until(HEAD_S)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keeps the connection of a client that closes its side behind a GET, as `nc -N` does, if the answer begins
        within `HALF_CLOSED_S`. Any other client has left: nothing tells the two apart before an answer is written, and
        none is generated for nobody."""
        cycle = self.cycle
        if cycle is None or cycle.more_body or cycle.response_started or cycle.scope["method"] not in ("GET", "HEAD"):
            return False
        cycle.keep_alive = False
        self._until(HALF_CLOSED_S, lambda: self._leave_unbegun(cycle))
        return self.transport.can_write_eof()  # TLS has no half of a connection

    def _leave_unbegun(self, cycle: RequestResponseCycle) -> None:
        if not cycle.response_started:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._until(None)
        self._taken()
        self._leave_place()
        self._unset_keepalive_if_required()  # uvicorn keeps it after a reset, and it would refer to the request
        if self._answering is not None and self._answering is not self.cycle:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        self._taken()
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_writing()

    def _watch_writing(self) -> None:
        size = self.transport.get_write_buffer_size()
        if size and self._unsent is None:
            self._unsent = self.loop.call_later(WRITE_S, self._check_taken, size)

    def _check_taken(self, before: int) -> None:
        self._unsent = None
        if self.transport.get_write_buffer_size() >= before:
            self.transport.abort()
        else:
            self._watch_writing()

    def _taken(self) -> None:
        if self._unsent is not None:
            self._unsent.cancel()
            self._unsent = None

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        if not self._head_done:
            self._head_bytes += len(data)  # a line without an end never reaches a callback
        self._unset_keepalive_if_required()
        self._parse(memoryview(data))
        if not self._head_done and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse_head()

    def _parse(self, data: memoryview) -> None:
        head = b""  # of a request whose upgrade is declined
        while True:
            try:
                if head:
                    self.parser.feed_data(head)
                self.parser.feed_data(data)
                return
            except httptools.HttpParserError:
                self._refuse(b"400 Bad Request", b"Invalid HTTP request received.")
                return
            except httptools.HttpParserUpgrade as pause:
                if self._refused:
                    return
                if not self._declined:
                    self.handle_websocket_upgrade()
                    return
                data = data[pause.args[0] :]
            self._declined = False
            fields = ((name, value) for name, value in self.headers if name != b"upgrade")
            line = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
            head = b"\r\n".join((line, *(b"%s: %s" % field for field in fields), b"\r\n"))
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's

    def on_message_begin(self) -> None:
        self._taken()  # the timer is for the answer before
        super().on_message_begin()
        self.scope["state"][PLACE] = self._place
        self._until(HEAD_S)

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEAD_BYTES_MAX:
            self._refuse_head()
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):  # RFC 9112, 3.2
            self._refuse(b"400 Bad Request", b"A request has one Host header.")
        if self.parser.get_method() == b"CONNECT":
            self._refuse(b"400 Bad Request", b"This is no proxy: CONNECT is not possible here.")
        if self._refused:
            return
        self._declined = self.parser.should_upgrade() and not self._should_upgrade()
        if self._declined:
            return
        self._head_done = True
        self._head_bytes = self._discarded = 0
        if self._gate is not None and self._stopped_by(self._gate):
            return
        self._until(BODY_S)
        super().on_headers_complete()

    def _stopped_by(self, gate: Gate) -> bool:
        """Has the gate check the head of the request. Returns whether the gate refused it and the refusal was written.
        If earlier answers are still being written, the refusal is left in the request's state for the middleware, and
        False is returned."""
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope: Scope = self.scope  # type: ignore[assignment]  # uvicorn fills in these three behind this
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["query_string"] = url.query or b""
        upgrade = self.parser.should_upgrade() and self._should_upgrade()
        error = gate.check(scope, upgrade=upgrade)
        if error is None:
            return False
        if not upgrade and self.cycle is not None and not self.cycle.response_complete:
            scope["state"][REFUSED] = error
            return False
        length = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        last = upgrade or self.expect_100_continue or not self.parser.should_keep_alive()
        close = last or length > DISCARD_BYTES_MAX
        self.transport.write(gate.answer(scope, error, close=close))
        if not close:
            self._answered = True
            self._until(BODY_S)
        elif length and not upgrade:
            self._leave_body()
        else:
            self._refused = True
            self.transport.close()
        return True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app if cycle.scope["http_version"] == "1.1" else _unframed(cycle, app))

    def on_body(self, body: bytes) -> None:
        if self._refused:
            return
        if self._answered or self.cycle.response_complete:  # answered unread: if little is left the connection is kept
            self._discarded += len(body)
            if self._discarded > DISCARD_BYTES_MAX:
                self._leave_body()
            return
        super().on_body(body)

    def _leave_body(self) -> None:
        """Stops reading a body that is not wanted, and closes once the sender has had time to read the answer."""
        self._refused = True
        self.transport.pause_reading()
        self._unset_keepalive_if_required()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._until(LINGER_S, self.transport.close)

    def on_message_complete(self) -> None:
        if self._refused or self._declined:
            return
        self._head_done = False
        self._until(None)
        if self._answered:
            self._answered = False
            self.on_response_complete()
            return
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        if self._refused:
            return
        self._until(None)
        self._taken()
        self._leave_place()  # a WebSocket has one of its own
        self.connections.discard(self)
        path = self.url.decode("ascii", "surrogateescape")
        version = self.parser.get_http_version()
        door = cast(WebSocketDoor, self._door)  # it has upgraded
        open_websocket(door, self.transport, path, self.scope["method"], self.headers, version)
        self.parser = None  # type: ignore[assignment]  # it refers back to us, and we are done: nothing is left for the garbage collector

    def _leave_place(self) -> None:
        if self._place is not None:
            self._place.close()
            self._place = None

    def _until(self, seconds: float | None, then: Callable[[], None] | None = None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, then or self._late)

    def _late(self) -> None:
        self._deadline = None
        if self._answered or (self._head_done and self.cycle is not None and self.cycle.response_started):
            self.transport.close()
        else:
            self._refuse(b"408 Request Timeout", b"The request did not come in time.")

    def _refuse_head(self) -> None:
        self._refuse(b"431 Request Header Fields Too Large", b"The head of the request is too large.")

    def _refuse(self, status: bytes, why: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self.transport.write(plain_answer(status, why))
        self.transport.close()


def _unframed(cycle: RequestResponseCycle, app: Any) -> Any:
    """Returns the application for a client of HTTP/1.0, which knows no chunks: an answer without a length ends with the
    connection."""

    async def run(scope: Scope, receive: Any, send: Any) -> None:
        endless = False

        async def send_plain(message: Any) -> None:
            nonlocal endless
            if message["type"] == "http.response.start":
                endless = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
                cycle.chunked_encoding = False if endless else None
            elif endless:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return run


def open_websocket(
    door: WebSocketDoor,
    transport: asyncio.Transport,
    path: str,
    method: str,
    headers: list[tuple[bytes, bytes]],
    version: str = "1.1",
) -> None:
    """Makes a connection a WebSocket and answers its handshake, which is parsed already."""
    host = next((value.decode("latin-1") for name, value in headers if name == b"host"), "")
    socket: Any = door.protocol(path, host)
    socket.connection_made(transport)
    head = websockets.Headers([(name.decode(), value.decode("latin-1")) for name, value in headers])
    socket.shake_hands(Handshake(path, head, method=method, protocol=f"HTTP/{version}"))
    transport.set_protocol(socket)


def plain_answer(status: bytes, why: bytes) -> bytes:
    """Returns an answer in plain text for a connection without a readable request."""
    head = b"\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: "
    return b"HTTP/1.1 %s%s%d\r\n\r\n%s" % (status, head, len(why), why)


async def listen(
    app: Any,
    state: ServerState,
    address: tuple[str, int],
    *,
    door: WebSocketDoor | None = None,
    shares: ConnectionShares | None = None,
    gate: Gate | None = None,
    date_header: bool = True,
    keep_alive_s: float = KEEP_ALIVE_S,
    **options: Any,
) -> asyncio.Server:
    """Serves `app` on an address. `options` are `create_server`'s. Raises Unavailable if the address is taken."""
    config = uvicorn.Config(
        app,
        http=HttpConnection,
        ws="none" if door is None else cast(Any, door.protocol),
        lifespan="off",
        log_config=None,
        log_level="error",  # it warns of every malformed request, which is what strangers send
        access_log=False,
        proxy_headers=False,
        forwarded_allow_ips=[],
        server_header=False,
        date_header=date_header,
        workers=1,
        timeout_keep_alive=cast(int, keep_alive_s),  # any number does
    )
    config.load()
    loop, (host, port) = asyncio.get_running_loop(), address
    shared = Listening(config, state, shares or ConnectionShares(), gate, door, loop, TimerWheel(loop))
    try:
        return await listen_on(loop, lambda: FirstHead(shared), listened_hosts(host), port, **options)
    except OSError as error:
        raise Unavailable(
            "address_unavailable",
            f"Cannot listen on {joined(host, port)}: {error.strerror}. Choose another host or port.",
        ) from error


async def listen_on(
    loop: asyncio.AbstractEventLoop,
    protocol: Callable[[], asyncio.BaseProtocol],
    hosts: Sequence[str],
    port: int,
    **options: Any,
) -> asyncio.Server:
    """Listens on several hosts with the same port, also if the system chooses it."""
    if port or len(hosts) == 1:
        return await loop.create_server(protocol, hosts, port, **options)
    for _ in range(PORTS_TRIED):
        with socket.create_server((hosts[0], 0), family=socket.AF_INET6) as probe:
            chosen = probe.getsockname()[1]
        with suppress(OSError):  # somebody has it on the other family
            return await loop.create_server(protocol, hosts, chosen, **options)
    return await loop.create_server(protocol, hosts[0], 0, **options)
