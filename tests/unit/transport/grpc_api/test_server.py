"""Where the gRPC API may listen."""

from __future__ import annotations

import pytest

from sessions.model.errors import BadInput, Unavailable
from tests.support.doors.transport import gateway_over, memory_sessions
from transport.grpc_api.server import OFF, GrpcServer


async def test_it_listens_on_loopback_only_without_keys_or_not_at_all() -> None:
    gateway = gateway_over(await memory_sessions())
    off = GrpcServer(gateway, host="127.0.0.1", port=OFF)
    assert not await off.start()
    await off.stop()
    with pytest.raises(BadInput) as caught:
        await GrpcServer(gateway, host="0.0.0.0", port=0).start()
    assert caught.value.param == "host"


async def test_a_port_that_is_taken_is_named() -> None:
    gateway = gateway_over(await memory_sessions())
    server = GrpcServer(gateway, host="127.0.0.1", port=0)
    assert await server.start() and server.port > 0
    try:
        with pytest.raises(Unavailable) as caught:
            await GrpcServer(gateway, host="127.0.0.1", port=server.port).start()
        assert str(server.port) in caught.value.public_message
    finally:
        await server.stop()
