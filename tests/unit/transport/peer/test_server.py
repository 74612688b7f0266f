"""A peer link from end to end on loopback: who is let in, and how it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from actors.peer.links import Carrier, LinkDown
from transport.addresses import joined
from transport.peer.client import GrpcDialer
from transport.peer.security import PeerSecurity
from transport.peer.server import PeerServer

SECURITY = PeerSecurity(token="0123456789abcdef")


async def echo(link: Carrier, peer: str) -> None:
    """One message, back to where it came from."""
    await link.send(await link.receive())


@asynccontextmanager
async def listening(security: PeerSecurity = SECURITY, host: str = "127.0.0.1") -> AsyncIterator[str]:
    server = PeerServer(echo, security=security)
    port = await server.start(host, 0)
    try:
        yield joined(host, port)
    finally:
        await server.stop()


async def test_messages_go_both_ways_until_the_stream_ends() -> None:
    async with listening() as address:
        carrier = await GrpcDialer(SECURITY).dial(address)
        await carrier.send(b"hello")
        assert await carrier.receive() == b"hello"
        with pytest.raises(LinkDown) as ended:
            await carrier.receive()
        assert ended.value.reason == "reset"
        await carrier.close()
        with pytest.raises(LinkDown) as closed:
            await carrier.receive()
        assert closed.value.reason == "closed"


@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_links_go_over_ipv6_however_its_literal_is_spelled(host: str) -> None:
    async with listening(host=host) as address:
        assert address.startswith("[::1]:")
        carrier = await GrpcDialer(SECURITY).dial(address)
        await carrier.send(b"hello")
        assert await carrier.receive() == b"hello"
        await carrier.close()
