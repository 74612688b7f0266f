"""Where the gRPC API may listen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from sessions.model.errors import Unavailable
from sessions.model.types import Principal, TenantId, UnixMs
from tests.support.doors.transport import gateway_over, memory_sessions
from transport.auth.authenticator import Authenticator, key_digest
from transport.auth.connection_shares import ShareLimits
from transport.grpc_api.server import GrpcLimits, GrpcServer


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


WATCH, CHECK = "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/Check"
KEY = (("authorization", "Bearer good"),)


@pytest.fixture
async def channel() -> AsyncIterator[Any]:
    """A channel to a server with keys, which lets each address have three calls without one."""
    keys = {key_digest("good"): Principal(tenant=TenantId("acme"), key_id="k")}
    access = Authenticator(keys, clock=lambda: 0.0, now_ms=lambda: UnixMs(1))
    limits = GrpcLimits(shares=ShareLimits(unauthenticated_per_address=3))
    server = GrpcServer(gateway_over(await memory_sessions(), access), host="127.0.0.1", port=0, limits=limits)
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as made:
        yield made
    await server.stop()


async def test_the_calls_of_health_are_shared_out_among_addresses(channel: Any) -> None:
    watches = [channel.unary_stream(WATCH)(b"") for _ in range(3)]
    for watch in watches:
        assert health_pb2.HealthCheckResponse.FromString(await watch.read()).status == 1
    for refused in (channel.unary_stream(WATCH)(b""), channel.unary_unary(CHECK)(b"")):
        assert await refused.code() is grpc.StatusCode.UNAVAILABLE
    for watch in watches:
        watch.cancel()
    for _ in range(9):  # answered one after the other: each gives its place back
        assert await channel.unary_unary(CHECK, request_serializer=bytes)(b"", wait_for_ready=True)


async def test_a_question_about_health_is_a_name(channel: Any) -> None:
    question = health_pb2.HealthCheckRequest(service="x" * 100_000).SerializeToString()
    for call in (channel.unary_unary(CHECK)(question), channel.unary_stream(WATCH)(question)):
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_needs_a_key_and_asks_for_names(channel: Any, version: str) -> None:
    path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    question = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    for metadata, message, code in (
        ((), question, grpc.StatusCode.UNAUTHENTICATED),
        (KEY, question, grpc.StatusCode.OK),
        (KEY, question + b"\x0a\xff\x7f" + b"x" * 16383, grpc.StatusCode.INVALID_ARGUMENT),
    ):
        call = channel.stream_stream(path)(metadata=metadata)
        await call.write(message)
        if code is grpc.StatusCode.OK:
            assert b"sessile.v1.Sessions" in await call.read()
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
        assert await call.code() is code
