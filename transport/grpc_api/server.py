"""The port of the gRPC API: listening, health, reflection, and going away.

Beside `sessile.v1.Sessions` it serves `grpc.health.v1.Health` (for balancers and orchestrators), without a key, and
server reflection (for grpcurl and the like), with one; neither shows anything of a session. Without keys it listens on
loopback only, as HTTP does. TLS is HTTP's, with the same certificate, or ends in front of both.

A caller that does not read costs one message and its stream; one that is gone without a word is found by gRPC's
keepalive. Calls under way are shared out among addresses and keys. The connections below them are the C core's, which
knows of a bound on them all but of none per address: those without a call end after a while, and the bound keeps the
process's sockets free for the other doors.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

import grpc
import grpc.aio
import msgspec
import structlog
from grpc_health.v1 import health, health_pb2

from sessions.model.errors import BadInput, Unavailable
from transport.addresses import is_loopback, joined
from transport.auth.connection_shares import ConnectionShares, ShareLimits
from transport.gateway import Gateway
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.public_services import add_public_services
from transport.grpc_api.service import SessionsService, register
from transport.http.tls import ServerTls

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Sessions"].full_name
OFF: Final = -1  # as a port

log = structlog.get_logger(__name__)


class GrpcLimits(msgspec.Struct, frozen=True, kw_only=True):
    calls_max: int = 50_000  # at a time, streams included; one key has a share of them
    connections_max: int = 10_000
    handshake_s: float = 10.0  # of TLS and HTTP/2
    idle_s: float = 300.0  # of a connection without a call
    shares: ShareLimits = ShareLimits()
    message_bytes_max: int = 4 * 1024 * 1024  # from a client, as on a WebSocket
    keepalive_s: float = 25.0
    keepalive_timeout_s: float = 10.0
    stop_s: float = 5.0


@dataclass(eq=False, repr=False)
class GrpcServer:
    """The gRPC port and its calls. If the port is `OFF`, its methods do nothing."""

    gateway: Gateway
    host: str
    port: int  # after `start` the one that is listened on
    limits: GrpcLimits = field(default_factory=GrpcLimits)
    tls: ServerTls | None = None
    _leaving: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _health: health.aio.HealthServicer = field(default_factory=health.aio.HealthServicer, init=False)
    _server: grpc.aio.Server | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        return joined(self.host, self.port)

    async def start(self) -> bool:
        """Starts to listen. Returns False if the port is `OFF`. Raises BadInput for an address that is not allowed
        without keys, Unavailable for one that cannot be listened on."""
        if self.port == OFF:
            return False
        if self.gateway.access.open and not is_loopback(self.host):
            raise BadInput(
                "invalid_setting",
                f"host = {self.host!r}: without keys gRPC listens on a loopback address only; demand keys.",
                param="host",
            )
        limits = self.limits
        keepalive_ms = round(limits.keepalive_s * 1000)
        server = grpc.aio.server(
            maximum_concurrent_rpcs=limits.calls_max,
            options=(
                ("grpc.max_receive_message_length", limits.message_bytes_max),
                ("grpc.max_send_message_length", -1),  # a state is as large as its session
                ("grpc.so_reuseport", 0),
                ("grpc.max_concurrent_streams", limits.shares.per_principal),  # of one connection
                ("grpc.max_allowed_incoming_connections", limits.connections_max),
                ("grpc.server_handshake_timeout_ms", round(limits.handshake_s * 1000)),
                ("grpc.max_connection_idle_ms", round(limits.idle_s * 1000)),
                ("grpc.keepalive_time_ms", keepalive_ms),
                ("grpc.keepalive_timeout_ms", round(limits.keepalive_timeout_s * 1000)),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),  # clients may keep alive, too
            ),
        )
        shares = ConnectionShares(limits.shares, exempt=self.gateway.access.origins.proxies.__contains__)
        sessions = SessionsService(self.gateway, self._leaving, shares)
        register(sessions, server)
        add_public_services(server, self._health, sessions, shares, SERVICE)
        try:
            if self.tls is None:
                self.port = server.add_insecure_port(self.address)
            else:
                self.port = server.add_secure_port(self.address, self.tls.grpc_credentials())
        except RuntimeError as error:
            raise Unavailable(
                "address_unavailable", f"Cannot listen on {self.address} for gRPC. Choose another host or port."
            ) from error
        await server.start()
        self._server = server
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        log.info("server_started", grpc=self.address)
        return True

    async def drain(self) -> None:
        """Tells health checks that the server leaves, and ends conversations with `draining`: their clients come back
        elsewhere."""
        self._leaving.set()
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> None:
        """Takes no more calls, gives running ones a moment to finish, and ends the rest. Idempotent. It must be called
        before the gateway is closed."""
        await self.drain()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(self.limits.stop_s)
