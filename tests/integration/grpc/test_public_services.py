"""Health and reflection: both versions of it, and messages that cannot be decoded, at every method."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from sessions.model.errors import BadInput, TooLarge
from tests.support.doors.grpc_door import Door
from tests.support.garbage import no_cycles
from transport.grpc_api import sessile_pb2 as pb

GARBAGE = b"\x0a\xff\xff\xff\xff\x7f"  # a field of 2 GiB that is not there
VERSIONS = ("v1", "v1alpha")


def reflecting(door: Door, version: str, *, raw: bool = False) -> Any:
    return door.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=None if raw else reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )()


@pytest.mark.parametrize("version", VERSIONS)
async def test_reflection_describes_every_service_itself_included(door: Door, version: str) -> None:
    call = reflecting(door, version)
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = [service.name for service in (await call.read()).list_services_response.service]
    assert {"sessile.v1.Sessions", *(f"grpc.reflection.{each}.ServerReflection" for each in VERSIONS)} <= set(names)
    for name in names:
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
        (first, *_) = (await call.read()).file_descriptor_response.file_descriptor_proto
        file = descriptor_pb2.FileDescriptorProto.FromString(first)
        assert name in [f"{file.package}.{service.name}" for service in file.service]
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_reflection_that_cannot_be_decoded_is_an_invalid_argument(door: Door, version: str) -> None:
    call = reflecting(door, version, raw=True)
    await call.write(GARBAGE)
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method", ["Check", "Watch"])
async def test_a_check_that_cannot_be_decoded_is_an_invalid_argument(door: Door, method: str) -> None:
    path = f"/grpc.health.v1.Health/{method}"
    channel: Any = door.channel
    call = (channel.unary_stream if method == "Watch" else channel.unary_unary)(path)(GARBAGE)
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("path", ["/grpc.health.v1.Health/Check", "/sessile.v1.Sessions/Create"])
async def test_a_call_that_is_refused_is_free_at_once(door: Door, path: str) -> None:
    channel: Any = door.channel
    with no_cycles(BadInput, TooLarge, grpc.aio.AbortError):
        for data in (GARBAGE, b"\x0a\x00" * 70_000):  # the second has more fields than a message may have
            call = channel.unary_unary(path)(data)
            assert await call.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
        del call


async def test_health_is_watched(door: Door) -> None:
    channel: Any = door.channel
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
    first = health_pb2.HealthCheckResponse.FromString(await watch.read())
    assert first.status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


@pytest.mark.parametrize("method", [each.name for each in pb.DESCRIPTOR.services_by_name["Sessions"].methods])
async def test_a_message_that_cannot_be_decoded_is_an_invalid_argument(door: Door, method: str) -> None:
    described = pb.DESCRIPTOR.services_by_name["Sessions"].methods_by_name[method]
    path = f"/sessile.v1.Sessions/{method}"
    channel: Any = door.channel
    if described.client_streaming:
        call = channel.stream_stream(path)()
        await call.write(GARBAGE)
    elif described.server_streaming:
        call = channel.unary_stream(path)(GARBAGE)
    else:
        call = channel.unary_unary(path)(GARBAGE)
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
