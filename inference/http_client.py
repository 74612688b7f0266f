"""A lean HTTP/1.1 client for one server, over TCP or a unix socket: a connection per request, SSE as events.

llama-server closes the connection of every stream by itself, so connections are not kept. What this is for is the
cost per token: parsing is httptools', events are split without decoding, and one wake-up may deliver many.
Closing an `SseReader` closes the socket at once: that is how a generation is aborted.

Errors: Unavailable when the server cannot be reached or cuts an answer short. HTTP status codes are the caller's.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from typing import cast
from weakref import WeakSet

import httptools

from sessions.model.errors import Unavailable

_CONNECT_RETRY_S = 0.02  # while a server that is behind has no room for a connection
_CONNECT_TRIES = 500
_EVENTS_UNREAD_MAX = 512  # beyond that the socket is not read, and TCP holds the server back
_HEAD_MAX = 256 << 10  # bytes of status and headers
_BODY_MAX = 64 << 20  # bytes of a body, or of one event; log probabilities of a whole vocabulary take 20 MB


class _Exchange(asyncio.Protocol):
    """One request and its answer, as a protocol on a connection. httptools calls the `on_*` methods."""

    def __init__(self, request: bytes, *, events: bool) -> None:
        self._request = request
        self._aborted = False
        self.gone = asyncio.Event()  # its socket is closed
        self._parser = httptools.HttpResponseParser(self)
        self._want_events = events
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        self.status = 0
        self.headers: dict[bytes, bytes] = {}  # by their names in lower case
        self._head_bytes = 0
        self.body = bytearray()
        self.events: deque[bytes] = deque()
        self.complete = False
        self.lost: Unavailable | None = None

    # -- asyncio's side ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but ancestry
        if self._aborted:
            self._transport.abort()
        else:
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self.lost = _unavailable()
            self.lost.__cause__ = exc
            self.abort()
        if self._want_events and self.status == 200:
            self._split_events()
        self._head_bytes += 0 if self.status else len(data)
        if len(self.body) > _BODY_MAX or self._head_bytes > _HEAD_MAX:
            self.lost = Unavailable("engine_unavailable", "The model's engine sends more than any answer is.")
            self.abort()
        if self.complete or self.events or self.lost:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        framed = self.headers.keys() & {b"content-length", b"transfer-encoding"}
        if exc is None and self.status and self._transport is not None and not framed:
            self.complete = True  # such a body ends with its connection
        if not self.complete and self.lost is None:
            self.lost = _unavailable()
            self.lost.__cause__ = exc
        self._transport = None
        del self._parser  # which holds our methods
        self._wake()

    # -- httptools' side -----------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # else a trailer, of which there may be any number
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True
        if self._transport is not None:
            self._transport.close()

    # -- the caller's side ---------------------------------------------------------------------------

    async def arrival(self) -> None:
        """Returns when something new has arrived. Cancelling it leaves the exchange as it is."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def resume(self) -> None:
        if self._paused and self._transport is not None and len(self.events) < _EVENTS_UNREAD_MAX // 2:
            self._paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _split_events(self) -> None:
        if b"\r" in self.body:
            self.body = self.body.replace(b"\r\n", b"\n")
        end = self.body.rfind(b"\n\n")
        if end < 0:
            return
        self.events.extend(bytes(event) for event in self.body[:end].split(b"\n\n"))
        del self.body[: end + 2]
        if len(self.events) >= _EVENTS_UNREAD_MAX and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class SseReader:
    """The server-sent events of one answer, raw and in order. Close it, whatever happened."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    async def next(self) -> bytes | None:
        """Returns the next event, its lines unparsed; None after the last one."""
        exchange = self._exchange
        while not exchange.events:
            if exchange.lost is not None:
                raise exchange.lost
            if exchange.complete:
                return None
            await exchange.arrival()
        event = exchange.events.popleft()
        exchange.resume()
        return event

    def header(self, name: str) -> str:
        """Returns a header of the answer; "" if it has none of this name, which is in lower case."""
        return self._exchange.headers.get(name.encode(), b"").decode("latin-1")

    def close(self) -> None:
        self._exchange.abort()


class HttpClient:
    """An HTTP client for one address. It keeps no connection open between calls."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        socket_path: str = "",
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`headers`, which the caller has checked, are sent with every request. With `socket_path`, the client connects
        to that unix socket; `host` and `port` are then only used in the requests' Host header."""
        self.socket_path = socket_path
        self._host = host
        self._port = port
        self._authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._tls = tls
        self._exchanges = WeakSet[_Exchange]()
        self._closed = False
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())

    @classmethod
    def unix(cls, socket_path: str) -> HttpClient:
        """Makes a client for a server on a unix socket."""
        return cls("localhost", 80, socket_path=socket_path)

    async def close(self) -> None:
        """Ends what is under way, and returns when its sockets are closed. From then on calls raise Unavailable."""
        self._closed = True
        exchanges = list(self._exchanges)
        for exchange in exchanges:
            exchange.abort()
        await asyncio.gather(*(exchange.gone.wait() for exchange in exchanges))

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Sends a request; returns (status, body) of its short answer."""
        exchange = await self._send(method, path, body, events=False)
        try:
            while not exchange.complete:
                if exchange.lost is not None:
                    raise exchange.lost
                await exchange.arrival()
        finally:
            exchange.abort()
        return exchange.status, bytes(exchange.body)

    async def stream(self, path: str, body: bytes) -> tuple[int, bytes, SseReader]:
        """Sends a request; returns (status, body, stream). With status 200 the events follow in the stream; with any
        other the body is there and the stream is over."""
        exchange = await self._send("POST", path, body, events=True)
        try:
            while not (exchange.events or exchange.complete):
                if exchange.lost is not None:
                    raise exchange.lost
                await exchange.arrival()
        except BaseException:
            exchange.abort()
            raise
        return exchange.status, bytes(exchange.body), SseReader(exchange)

    async def _send(self, method: str, path: str, body: bytes, *, events: bool) -> _Exchange:
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: {self._authority}\r\nconnection: close\r\n"
            f"content-type: application/json\r\n{self._headers}content-length: {len(body)}\r\n\r\n"
        )
        exchange = _Exchange(head.encode() + body, events=events)
        loop = asyncio.get_running_loop()
        if self._closed:
            raise _unavailable()
        self._exchanges.add(exchange)
        try:
            if self.socket_path:
                await loop.create_unix_connection(lambda: exchange, sock=await _connected(self.socket_path))
            else:
                await loop.create_connection(lambda: exchange, self._host, self._port, ssl=self._tls)
        except (OSError, UnicodeError) as exc:  # the latter of what can be no host's name
            exchange.gone.set()
            raise _unavailable() from exc
        except BaseException:
            exchange.gone.set()
            exchange.abort()
            raise
        return exchange


async def _connected(path: str) -> socket.socket:
    """Returns a connected unix socket. Where TCP would wait for a server that is slow to accept, a unix socket fails at
    once, and an event loop takes that for an error (uvloop) or for a connection (asyncio). Raises OSError."""
    for _ in range(_CONNECT_TRIES):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.setblocking(False)
            connection.connect(path)
            return connection
        except BlockingIOError:
            connection.close()
            await asyncio.sleep(_CONNECT_RETRY_S)
        except BaseException:
            connection.close()
            raise
    raise TimeoutError(f"{path}: no room for a connection")


def _unavailable() -> Unavailable:
    return Unavailable("engine_unavailable", "The model's engine does not answer.")
