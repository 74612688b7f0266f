"""The answering end of peer links on gRPC: a server with one method that hands each stream to the replica's host."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
import structlog

from actors.peer.links import Carrier, LinkDown
from sessions.model.errors import BadInput
from transport.addresses import joined
from transport.peer.client import ADMITTED, MESSAGE_BYTES_MAX, METHOD
from transport.peer.security import PeerSecurity

log = structlog.get_logger(__name__)

SERVER_OPTIONS: Final = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),  # a second replica on the same port is a mistake, and fails
)

Accept = Callable[[Carrier, str], Awaitable[None]]


class ServerCarrier:
    """The accepting process's end of a link's gRPC stream."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._closed = False

    async def send(self, message: bytes) -> None:
        self._check()
        try:
            await self._context.write(message)
        except (grpc.aio.BaseError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            raise LinkDown("reset", str(error)) from error

    async def receive(self) -> bytes:
        self._check()
        try:
            message = await self._context.read()
        except (grpc.aio.BaseError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            raise LinkDown("reset", str(error)) from error
        if message is grpc.aio.EOF:
            raise LinkDown("reset", "the stream ended")
        assert isinstance(message, bytes)
        return message

    def _check(self) -> None:
        if self._closed:
            raise LinkDown("closed")

    async def close(self) -> None:
        """Marks the stream as closed. gRPC ends it when the `accept` that serves it returns."""
        self._closed = True


class PeerServer(grpc.GenericRpcHandler):
    """Listens for peers. `accept` runs one link to its end (`actors.peer.server.PeerEndpoint.accept`)."""

    def __init__(self, accept: Accept, *, security: PeerSecurity) -> None:
        self._accept = accept
        self._security = security
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Starts to listen and returns the port; with port 0 the system chooses one. Raises BadInput if this address is
        not allowed or cannot be listened on."""
        self._security.check_address(host)
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((self,))
        address = joined(host, port)  # of `::` gRPC takes both families
        try:
            if self._security.tls:
                bound = server.add_secure_port(address, self._security.server_credentials())
            else:
                bound = server.add_insecure_port(address)
        except RuntimeError as error:
            raise BadInput(
                "invalid_setting", f"The peer link cannot listen on {address}.", param="peer_port"
            ) from error
        await server.start()
        self._server = server
        return bound

    async def stop(self, grace_s: float | None = None) -> None:
        """Takes no new links and ends those that are left after `grace_s`. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace_s)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return grpc.stream_stream_rpc_method_handler(self._link) if details.method == METHOD else None

    async def _link(self, _: Any, context: Any) -> None:
        """Serves one link until it ends."""
        if not self._security.admits(context.invocation_metadata()):
            log.warning("peer_rejected", peer=context.peer())
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the cluster's token is missing or wrong")
        await context.send_initial_metadata((ADMITTED,))
        await self._accept(ServerCarrier(context), context.peer())
