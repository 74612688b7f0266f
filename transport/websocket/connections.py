"""All WebSocket connections of one server: what they share.

One wheel for their deadlines, one callback a turn that flushes whoever has something to say, and the ways to end them
all. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from transport.auth.connection_shares import ConnectionShares, Place
from transport.gateway import Gateway
from transport.http.timer_wheel import TimerWheel
from transport.protocol.connection import ConnectionLimits
from transport.websocket.first_message import HEAD_BYTES, FirstMessage, first_message
from transport.websocket.inner_requests import App
from transport.websocket.responses_frames import RESPONSES
from transport.websocket.responses_socket import ResponsesConnection
from transport.websocket.upgraded import HeldConnection, UpgradedConnection
from transport.websocket.websocket import HELLO_BYTES_MAX, WebSocketConnection

log = structlog.get_logger(__name__)


class WebSocketConnections:
    """All WebSocket connections of one server: makes them, knows the open ones, and has what they share."""

    def __init__(
        self,
        gateway: Gateway,
        limits: ConnectionLimits,
        connections_max: int,
        shares: ConnectionShares | None = None,
        app: App | None = None,
    ) -> None:
        """`app`: the HTTP application, for the requests of Responses connections; without it there are none."""
        self.gateway = gateway
        self.limits = limits
        self.shares = shares or ConnectionShares()
        self.loop = asyncio.get_running_loop()
        self.wheel = TimerWheel(self.loop)
        self.connections: set[HeldConnection] = set()
        self.first_bytes = memoryview(bytearray(HELLO_BYTES_MAX + HEAD_BYTES))
        self.deflating = 0
        self.message_bytes = 0
        self.empty = asyncio.Event()  # set while there are no connections
        self.empty.set()
        self._connections_max = connections_max
        self._app = app
        self._awake: list[HeldConnection] = []

    def protocol(self, path: str = "", host: str = "", **_: Any) -> UpgradedConnection:
        """Returns the connection for an upgrade at a path. uvicorn calls this (`ws=`) with its own configuration."""
        if self._app is not None and path.partition("?")[0] == RESPONSES:
            return ResponsesConnection(self, _app=self._app, _host=host)
        return WebSocketConnection(self)

    def begin(
        self, head: Mapping[str, Any], transport: asyncio.BaseTransport, peer: str | None, place: Place | None
    ) -> FirstMessage | None:
        """Answers the handshake of `head` if it is plain and without a credential, and returns the reader of its first
        message, which then owns `place`; None if the handshake must be parsed. Raises SessileError if refused."""
        return first_message(self, head, transport, peer, place)

    @property
    def full(self) -> bool:
        return len(self.connections) >= self._connections_max

    @property
    def over_limit(self) -> bool:
        return len(self.connections) > self._connections_max

    def opened(self, connection: HeldConnection) -> None:
        self.connections.add(connection)
        self.empty.clear()

    def closed(self, connection: HeldConnection) -> None:
        self.connections.discard(connection)
        self.wheel.take(connection)
        if not self.connections:
            self.empty.set()

    def flush_soon(self, connection: HeldConnection) -> None:
        """Has `connection.flush` called before the loop waits again. Connections call it once per turn of the loop."""
        if not self._awake:
            self.loop.call_soon(self._flush)
        self._awake.append(connection)

    def _flush(self) -> None:
        awake, self._awake = self._awake, []
        now = self.loop.time()
        for connection in awake:
            try:
                connection.flush(now)
            except Exception:
                # a bug: its client resumes from the log, and the other connections are still flushed
                log.exception("flush_failed")
                connection.abort()

    def goaway(self, reason: str, after_ms: int, step_ms: float = 0.0) -> None:
        """Tells every connection that it will be closed with 1012, each `step_ms` later than the one before,
        so that clients do not all reconnect at once."""
        for number, connection in enumerate(list(self.connections)):
            connection.goaway(reason, after_ms + round(number * step_ms))

    def abort(self) -> None:
        """Cuts all connections that are open."""
        for connection in list(self.connections):
            connection.abort()
        self.wheel.close()
