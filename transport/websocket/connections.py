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
    """Makes connections and knows those that are open."""

    def __init__(
        self,
        gateway: Gateway,
        limits: ConnectionLimits,
        connections_max: int,
        shares: ConnectionShares | None = None,
        app: App | None = None,
    ) -> None:
        """`app`: the HTTP application, which a socket of Responses speaks to; None: there is none of them."""
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
        """What uvicorn's `ws=` calls, with its own configuration, for every upgrade: the connection for a path."""
        if self._app is not None and path.partition("?")[0] == RESPONSES:
            return ResponsesConnection(self, _app=self._app, _host=host)
        return WebSocketConnection(self)

    def begin(
        self, head: Mapping[str, Any], transport: asyncio.BaseTransport, peer: str | None, place: Place | None
    ) -> FirstMessage | None:
        """Answers a handshake that is written as nearly every one is, and brings no key; what reads its first message,
        and has `place` from now on. None: it is to be parsed. Raises SessileError where it is refused."""
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
        """Once per connection and turn: `flush` is called before the loop waits again."""
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
                # Ours to mend; its client resumes from the log, and the rest of this turn is not to suffer.
                log.exception("flush_failed")
                connection.abort()

    def goaway(self, reason: str, after_ms: int, step_ms: float = 0.0) -> None:
        """Tells every connection that it will be closed with 1012 after a while, each `step_ms` after the one before:
        those who come back together wait for each other."""
        for number, connection in enumerate(list(self.connections)):
            connection.goaway(reason, after_ms + round(number * step_ms))

    def abort(self) -> None:
        """Cuts what is left."""
        for connection in list(self.connections):
            connection.abort()
        self.wheel.close()
