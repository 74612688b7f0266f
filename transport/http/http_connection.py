"""Limits uvicorn's HTTP connections: sizes and times of a request's head and body, before authentication.

A request's head must be complete within `head_s` and `head_bytes_max`, its body within `body_s`; a connection that does
neither is answered with 408 or 431, or just closed. Idle keep-alive is uvicorn's own `timeout_keep_alive`.

Does not know requests; the size of bodies is `transport.http.app`'s business.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from sessions.model.errors import SessileError, Unavailable
from transport.auth.connection_shares import PLACE, ConnectionShares, Place

KEEP_ALIVE_S: Final = 15
HEAD_BYTES_MAX: Final = 32 * 1024
HEAD_S: Final = 10.0
BODY_S: Final = 60.0
DISCARD_BYTES_MAX: Final = 64 * 1024  # read of a body that was refused; beyond it the connection is closed
LINGER_S: Final = 1.0
CONNECTIONS_MAX: Final = 1024  # plain HTTP ones at a time; WebSockets leave this count when they upgrade


class HttpConnection(HttpToolsProtocol):
    """One HTTP connection, until it closes or becomes a WebSocket."""

    _place: Place | None = None
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _head_done = False
    _discarded = 0  # of the body of a request that was answered without it
    _refused = False

    def __init__(
        self, config: uvicorn.Config, state: ServerState, shares: ConnectionShares, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(config, state, {}, loop)
        self._shares = shares

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        try:
            self._place = self._shares.open(None if self.client is None else self.client[0], plain=True)
        except SessileError as error:
            self._refuse(b"503 Service Unavailable", error.public_message.encode())
            return
        if len(self.connections) > CONNECTIONS_MAX:
            self._refuse(b"503 Service Unavailable", b"Too many connections.")
            return
        self._until(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._until(None)
        self._leave_place()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        if not self._head_done:
            self._head_bytes += len(data)  # a line without an end never gets as far as a callback
        super().data_received(data)
        if not self._head_done and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][PLACE] = self._place
        self._until(HEAD_S)

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEAD_BYTES_MAX:
            self._refuse_head()
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):  # RFC 9112, 3.2
            self._refuse(b"400 Bad Request", b"A request has one Host header.")
        if self._refused:
            return
        self._head_done = True
        self._head_bytes = self._discarded = 0
        self._until(BODY_S)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._refused:
            return
        if self.cycle.response_complete:  # refused before it was read: what little is left keeps the connection
            self._discarded += len(body)
            if self._discarded > DISCARD_BYTES_MAX:
                self._leave_body()
            return
        super().on_body(body)

    def _leave_body(self) -> None:
        """Reads no more of a body that is not wanted, and closes when its sender has had time to read the answer."""
        self._refused = True
        self.transport.pause_reading()
        self._unset_keepalive_if_required()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(LINGER_S, self.transport.close)

    def on_message_complete(self) -> None:
        if self._refused:
            return
        self._head_done = False
        self._until(None)
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        if self._refused:
            return
        self._until(None)
        self._leave_place()  # a WebSocket has one of its own
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment]  # it refers back to us, and we are done: nothing is left for the garbage collector

    def _leave_place(self) -> None:
        if self._place is not None:
            self._place.close()
            self._place = None

    def _until(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        self._deadline = None
        if self._head_done and self.cycle is not None and self.cycle.response_started:
            self.transport.close()
        else:
            self._refuse(b"408 Request Timeout", b"The request did not come in time.")

    def _refuse_head(self) -> None:
        self._refuse(b"431 Request Header Fields Too Large", b"The head of the request is too large.")

    def _refuse(self, status: bytes, why: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        length = str(len(why)).encode()
        self.transport.write(
            b"HTTP/1.1 "
            + status
            + b"\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: "
            + length
            + b"\r\nconnection: close\r\n\r\n"
            + why
        )
        self.transport.close()


async def listen(
    app: Any,
    state: ServerState,
    address: tuple[str, int],
    *,
    ws: Any = "none",
    shares: ConnectionShares | None = None,
    date_header: bool = True,
    **options: Any,
) -> asyncio.Server:
    """Serves `app` on an address; `options` are `create_server`'s. Raises Unavailable for one that cannot be had."""
    config = uvicorn.Config(
        app,
        http=HttpConnection,
        ws=ws,
        lifespan="off",
        log_config=None,
        log_level="error",  # it warns of every malformed request, which is what strangers send
        access_log=False,
        proxy_headers=False,
        forwarded_allow_ips=[],
        server_header=False,
        date_header=date_header,
        workers=1,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    config.load()
    loop, counted, (host, port) = asyncio.get_running_loop(), shares or ConnectionShares(), address
    try:
        return await loop.create_server(lambda: HttpConnection(config, state, counted, loop), host, port, **options)
    except OSError as error:
        raise Unavailable(
            "address_unavailable",
            f"Cannot listen on {host}:{port}: {error.strerror}. Choose another host or port.",
        ) from error
