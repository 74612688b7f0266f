"""The dialing end of peer links on gRPC.

Every dial is a channel of its own: gRPC's shared connections would bring their own reconnecting and backing off, and
whether a replica is there is decided above (`actors.peer.links`). Retries, proxies and gRPC's keepalive are off for the
same reason. Bound: one message of the wire is under way at a time; gRPC's flow control holds the next.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Final

import grpc
import grpc.aio

from actors.peer.links import LinkDown
from transport.peer.security import PeerSecurity

METHOD: Final = "/sessile.peer.v1.Peer/Link"
MESSAGE_BYTES_MAX: Final = 64 << 20
KNOCK_AGAIN_S: Final = 0.1
ADMITTED: Final = ("sessile-link", "1")  # metadata that the answering end sends first

CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_REJECTIONS: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)


class ClientCarrier:
    """The dialing process's end of a link's gRPC stream."""

    def __init__(self, channel: grpc.aio.Channel, call: Any) -> None:
        self._channel = channel
        self._call = call
        self._closed = False

    async def send(self, message: bytes) -> None:
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise _down(error) from error
        except asyncio.InvalidStateError as error:  # the call ended earlier: its status says why
            raise await self._ended() from error

    async def receive(self) -> bytes:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _down(error) from error
        except asyncio.InvalidStateError as error:
            raise await self._ended() from error
        if message is grpc.aio.EOF:
            raise await self._ended()
        assert isinstance(message, bytes)
        return message

    async def _ended(self) -> LinkDown:
        if self._closed:
            return LinkDown("closed")
        code = await self._call.code()
        if code in _REJECTIONS:
            return LinkDown("rejected", await self._call.details())
        return LinkDown("reset", f"the stream ended ({code.name})")

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._call.cancel()
            await self._channel.close()


def _down(error: grpc.aio.AioRpcError) -> LinkDown:
    return LinkDown("rejected" if error.code() in _REJECTIONS else "reset", error.details() or error.code().name)


class GrpcDialer:
    """Implements `Dialer`: opens links to peers over gRPC."""

    def __init__(self, security: PeerSecurity) -> None:
        self._security = security

    async def dial(self, address: str) -> ClientCarrier:
        if not self._security.may_cross(address.rpartition(":")[0]):
            raise LinkDown("rejected", f"a link to {address} needs mutual TLS (--peer-authority) or --peer-insecure")
        channel = self._channel(address)
        try:
            await _connected(channel, address)
            call: Any = channel.stream_stream(METHOD)(metadata=self._security.metadata())
            await _admitted(call)
            return ClientCarrier(channel, call)
        except BaseException:
            await channel.close()
            raise

    async def knock(self, address: str) -> None:
        """Connects to an address and closes the connection again, to see whether anybody listens; connects once more
        beside it if the first may have been lost on its way. Raises LinkDown."""
        host, _, port = address.rpartition(":")
        first = asyncio.ensure_future(_connect(host.strip("[]"), int(port)))
        knocks = [first]
        try:
            await asyncio.wait(knocks, timeout=KNOCK_AGAIN_S)
            if not first.done():
                knocks.append(asyncio.ensure_future(_connect(host.strip("[]"), int(port))))
            done, _ = await asyncio.wait(knocks, return_when=asyncio.FIRST_COMPLETED)
            await done.pop()
        except OSError as error:
            raise LinkDown("refused", f"{address} takes no connection: {error}") from error
        finally:
            for knock in knocks:
                knock.cancel()
            await asyncio.gather(*knocks, return_exceptions=True)

    def _channel(self, address: str) -> grpc.aio.Channel:
        security = self._security
        if not security.tls:
            return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        options: tuple[tuple[str, Any], ...] = CHANNEL_OPTIONS
        if security.server_name:
            options += (("grpc.ssl_target_name_override", security.server_name),)
        return grpc.aio.secure_channel(address, security.channel_credentials(), options=options)


async def _connect(host: str, port: int) -> None:
    """Opens a TCP connection and resets it at once, so that neither end keeps anything of it. Raises OSError."""
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, port)
    reset = struct.pack("ii", 1, 0)
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    transport.abort()


async def _admitted(call: Any) -> None:
    """Waits until the server reports that it has accepted the stream. Without this wait, a first message that is sent
    while the server refuses the stream would fail with an error of gRPC's own, and the reason would be lost. Raises
    LinkDown."""
    try:
        metadata = await call.initial_metadata()
    except asyncio.InvalidStateError:
        metadata = None
    if metadata is None or ADMITTED[0] not in metadata:
        code = await call.code()
        raise LinkDown("rejected" if code in _REJECTIONS else "reset", await call.details() or code.name)


async def _connected(channel: grpc.aio.Channel, address: str) -> None:
    """Waits until the channel is connected to `address`. Raises LinkDown at the first failed attempt."""
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            raise LinkDown("refused", f"{address} cannot be reached")
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)
