"""One port for everything: uvicorn's HTTP connections and our WebSockets, inside the caller's event loop.

uvicorn's own server is left out: it takes over the signals and ends the process when a port is taken. Its connection
class and configuration are what we need. The owner calls `start`, then `drain` when the process is to leave, then
`stop`; nothing here handles signals.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from uvicorn.server import ServerState

from transport.addresses import check_loopback, is_loopback, joined
from transport.auth.connection_shares import ConnectionShares, ShareLimits
from transport.gateway import Gateway
from transport.http.http_connection import KEEP_ALIVE_S, listen
from transport.http.tls import HANDSHAKE_S, ServerTls
from transport.http_api.cross_origin import make_gate
from transport.http_api.late_app import LateApp
from transport.ops.process_tuning import return_large_blocks
from transport.ops.prometheus import MetricsExposition
from transport.protocol.connection import ConnectionLimits
from transport.websocket.connections import WebSocketConnections

BACKLOG: Final = 4096
STOP_S: Final = 5.0
END_S: Final = 1.0  # until streams that were ended have said so to their clients
WEB: Final = Path(__file__).parent.parent / "web"

log = structlog.get_logger(__name__)

SPREAD_MS: Final = 2_000.0  # the longest time over which `drain` spreads its messages
STEP_MS: Final = 400.0  # between the messages to two connections, if there are few


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    connections_max: int = 50_000  # WebSockets
    connection: ConnectionLimits = ConnectionLimits()
    shares: ShareLimits = ShareLimits()
    keep_alive_s: float = KEEP_ALIVE_S


class Server:
    """The server on one port: the listening socket and all connections to it."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        host: str,
        port: int,
        limits: ServerLimits | None = None,
        readiness: Callable[[], str | None] = lambda: None,
        web: Path | None = WEB,
        tls: ServerTls | None = None,
        exposition: MetricsExposition | None = None,
    ) -> None:
        """`readiness` returns why no traffic is wanted, or None. Draining is checked here in addition."""
        self.gateway = gateway
        self._host = host
        self._port = port
        self._limits = limits or ServerLimits()
        self._readiness = readiness
        self._tls = tls
        exposition = exposition or MetricsExposition(gateway.measures, version="0", role="serve")
        self._app = LateApp(gateway, readiness=self._unready, web=web, exposition=exposition)
        self._state = ServerState()
        self._listener: asyncio.Server | None = None
        self._door: WebSocketConnections | None = None

    @property
    def port(self) -> int:
        """The port that the server listens on. Only after `start`."""
        assert self._listener is not None
        return int(self._listener.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{joined(self._host, self.port)}"

    @property
    def local_url(self) -> str:
        """The URL for programs on this machine: `url`, or loopback if the server listens on every address."""
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        host = everywhere.get(self._host, self._host)
        return f"{'http' if self._tls is None else 'https'}://{joined(host, self.port)}"

    @property
    def connections(self) -> int:
        """The number of open WebSockets."""
        return 0 if self._door is None else len(self._door.connections)

    async def start(self) -> None:
        """Starts to listen. Raises BadInput if the address is not allowed without keys, Unavailable if it is taken."""
        if self.gateway.access.open:
            check_loopback(self._host)
        return_large_blocks()
        shares = ConnectionShares(self._limits.shares, exempt=self.gateway.access.origins.proxies.__contains__)
        limits = self._limits
        door = self._door = WebSocketConnections(
            self.gateway, limits.connection, limits.connections_max, shares, self._app
        )
        options: dict[str, Any] = {"backlog": BACKLOG}
        if self._tls is not None:
            options |= {"ssl": self._tls.context(), "ssl_handshake_timeout": HANDSHAKE_S}
        elif not is_loopback(self._host):
            log.warning("tls_disabled", host=self._host, consequence="keys and texts can be read on the way")
        self._listener = await listen(
            self._app,
            self._state,
            (self._host, self._port),
            door=door,
            shares=shares,
            gate=make_gate(self.gateway),
            keep_alive_s=self._limits.keep_alive_s,
            date_header=False,
            **options,
        )
        for listening in self._listener.sockets:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.gateway.start()
        log.info("server_started", url=self.url)

    async def load(self) -> None:
        """Loads what nearly every request needs, in a thread; otherwise the first request does, and waits."""
        await self._app.load()

    async def drain(self, reason: str, after_ms: int, *, spread: bool = False) -> None:
        """Takes no new connections, sends `goaway` to all open ones and returns when they have left. After `after_ms`
        they are closed with 1012, and a little later cut. With `spread` the messages are sent over up to `SPREAD_MS`,
        because all clients reconnect to servers that run already."""
        self.gateway.drain()
        door = self._door
        if door is None:
            return
        log.info("drain_started", connections=len(door.connections), after_ms=after_ms)
        step_ms = min(STEP_MS, SPREAD_MS / max(1, len(door.connections))) if spread else 0.0
        door.goaway(reason, after_ms, step_ms)
        last_s = (after_ms + len(door.connections) * step_ms) / 1000
        timeout_s = last_s + self._limits.connection.timing.close_s + 1
        try:
            async with asyncio.timeout(timeout_s):
                await door.empty.wait()
        except TimeoutError:
            log.warning("drain_timed_out", connections=len(door.connections))

    async def stop(self) -> None:
        """Closes the port, waits up to `STOP_S` for running requests, then ends their answers with `draining`, and cuts
        off what is left. Idempotent."""
        self.gateway.drain()
        if self._listener is not None:
            self._listener.close()
            for connection in list(self._state.connections):
                connection.shutdown()
            if self._state.tasks:
                _, late = await asyncio.wait(self._state.tasks, timeout=STOP_S)
                self.gateway.drain(answers=True)
                if late:
                    _, late = await asyncio.wait(late, timeout=END_S)
                for task in late:
                    task.cancel()
                if late:
                    await asyncio.wait(late)
            for connection in list(self._state.connections):
                connection.transport.abort()
            self._listener = None
        if self._door is not None:
            self._door.abort()
            await self._door.empty.wait()
            self._door = None
        await self.gateway.close()

    def _unready(self) -> str | None:
        return "draining" if self.gateway.draining else self._readiness()
