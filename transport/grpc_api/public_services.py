"""Serves health and reflection, which need no key: `grpc.health.v1`, and reflection as v1 and as v1alpha before it.

The packages' own registration answers a message that cannot be decoded with INTERNAL; here it is INVALID_ARGUMENT, as
at every other method. Both versions of reflection have the same messages on the wire under two names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1ALPHA: Final = reflection.SERVICE_NAME
V1: Final = "grpc.reflection.v1.ServerReflection"
_FILE: Final = "grpc/reflection/v1/reflection.proto"
Context = grpc.aio.ServicerContext[Any, Any]


def add_public_services(server: grpc.aio.Server, servicer: health.aio.HealthServicer, service: str) -> None:
    """`service`: the one of our own that reflection describes beside these."""
    checks = health_pb2.HealthCheckRequest
    _add(
        server,
        health.SERVICE_NAME,
        {
            "Check": grpc.unary_unary_rpc_method_handler(_unary(servicer.Check, checks), None, _serialized),
            "Watch": grpc.unary_stream_rpc_method_handler(_watching(servicer.Watch, checks), None, _serialized),
        },
    )
    pool = _described()
    described = reflection.aio.ReflectionServicer((service, health.SERVICE_NAME, V1, V1ALPHA), pool)
    for name in (V1, V1ALPHA):
        handler: Any = grpc.stream_stream_rpc_method_handler(_reflecting(described), None, _serialized)
        _add(server, name, {"ServerReflectionInfo": handler})


def _add(server: grpc.aio.Server, service: str, handlers: dict[str, Any]) -> None:
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_registered_method_handlers(service, handlers)


def _described() -> descriptor_pool.DescriptorPool:
    """The descriptors of this process, with those of reflection v1: v1alpha's under the other name."""
    pool = descriptor_pool.Default()
    try:
        pool.FindFileByName(_FILE)
    except KeyError:
        file = descriptor_pb2.FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(file)
        _rename(file)
        pool.Add(file)
    return pool


def _rename(file: descriptor_pb2.FileDescriptorProto) -> None:
    file.name, file.package = _FILE, V1.rpartition(".")[0]
    file.ClearField("options")
    for message in file.message_type:
        for field in (each for each in message.field if each.type_name):
            field.type_name = field.type_name.replace("v1alpha", "v1")
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace("v1alpha", "v1")
            method.output_type = method.output_type.replace("v1alpha", "v1")


async def _decoded(kind: Any, data: bytes, context: Context) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        message = f"This is no {kind.DESCRIPTOR.full_name}."
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)


def _unary(call: Callable[[Any, Context], Any], kind: Any) -> Callable[[bytes, Context], Any]:
    async def answer(data: bytes, context: Context) -> Any:
        return await call(await _decoded(kind, data, context), context)

    return answer


def _watching(call: Callable[[Any, Context], Any], kind: Any) -> Callable[[bytes, Context], Any]:
    async def answer(data: bytes, context: Context) -> None:
        await call(await _decoded(kind, data, context), context)  # it writes by itself

    return answer


def _reflecting(servicer: Any) -> Callable[[AsyncIterator[bytes], Context], Any]:
    async def answer(incoming: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
        async def requests() -> AsyncIterator[Any]:
            async for data in incoming:
                yield await _decoded(reflection_pb2.ServerReflectionRequest, data, context)

        async for reply in servicer.ServerReflectionInfo(requests(), context):
            yield reply

    return answer


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
