"""Serves `grpc.health.v1`, which needs no key, and reflection as v1 and as v1alpha before it, which needs one.

Calls of health take a place among those of their address that have shown no key, and all of them have a bound, which
strangers cannot use up for others (`ContestedPlaces`). The C core would receive a message of the size of a whole
conversation before it asks us: so each method is served as one whose client streams, which is the same on the wire, and
reads only when there is a place, few messages at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from sessions.model.errors import BadInput, SessileError
from sessions.model.types import Principal
from transport.auth.connection_shares import ConnectionShares, Place
from transport.auth.contested_places import ContestedPlaces
from transport.grpc_api.service import SessionsService, decoded
from transport.grpc_api.status import refuse

V1ALPHA: Final = reflection.SERVICE_NAME
V1: Final = "grpc.reflection.v1.ServerReflection"
_FILE: Final = "grpc/reflection/v1/reflection.proto"
Context = grpc.aio.ServicerContext[Any, Any]


MESSAGE_BYTES_MAX: Final = 1024  # all that these services are asked is a name
CALLS_MAX: Final = 8_192  # of health at a time
READS_MAX: Final = 64  # messages of health that are received at a time
READS_PER_ADDRESS: Final = 16
READ_S: Final = 5.0


def add_public_services(
    server: grpc.aio.Server,
    servicer: health.aio.HealthServicer,
    sessions: SessionsService,
    shares: ConnectionShares,
    service: str,
) -> None:
    """Adds health checks and reflection to a server. `service` is the name of our own service, which reflection
    describes beside them; `sessions` implements it and authenticates the callers of reflection."""
    calls = HealthCalls(sessions, shares)
    _add(
        server,
        health.SERVICE_NAME,
        {
            "Check": grpc.stream_unary_rpc_method_handler(calls.answering(servicer.Check), None, _serialized),
            "Watch": grpc.stream_stream_rpc_method_handler(calls.answering(servicer.Watch), None, _serialized),
        },
    )
    pool = _described()
    described = reflection.aio.ReflectionServicer((service, health.SERVICE_NAME, V1, V1ALPHA), pool)
    for name in (V1, V1ALPHA):
        handler: Any = grpc.stream_stream_rpc_method_handler(_reflecting(described, sessions), None, _serialized)
        _add(server, name, {"ServerReflectionInfo": handler})


class HealthCalls:
    """The health checks that are being answered; their number is bounded and shared out among addresses."""

    def __init__(self, sessions: SessionsService, shares: ConnectionShares) -> None:
        self._sessions = sessions
        self._shares = shares
        self._calls = ContestedPlaces(CALLS_MAX, per_address=CALLS_MAX)  # an address has the share of its connections
        self._reads = ContestedPlaces(READS_MAX, per_address=READS_PER_ADDRESS)

    def answering(self, call: Callable[[Any, Context], Any]) -> Callable[[Any, Context], Any]:
        async def answer(_: Any, context: Context) -> Any:
            place: Place | None = None
            try:
                address = self._sessions.client(context)
                place = self._shares.open(address, plain=False)
                async with self._calls.take(address):
                    async with self._reads.take(address, READ_S):
                        request = _small(health_pb2.HealthCheckRequest, await context.read())
                    return await call(request, context)  # a watch writes by itself
            except SessileError as error:
                refuse(context, error)
                return None
            finally:
                if place is not None:
                    place.close()

        return answer


def _add(server: grpc.aio.Server, service: str, handlers: dict[str, Any]) -> None:
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_registered_method_handlers(service, handlers)


def _described() -> descriptor_pool.DescriptorPool:
    """Returns the message descriptors of this process, extended by those of reflection v1, which are copies of
    v1alpha's."""
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


def _small(kind: Any, data: Any) -> Any:
    """Decodes a message of this kind. Raises BadInput if there is none, it is malformed, or it has more than
    `MESSAGE_BYTES_MAX` bytes."""
    if data is grpc.aio.EOF or len(data) > MESSAGE_BYTES_MAX:
        raise BadInput("invalid_request", f"A {kind.DESCRIPTOR.name} has at most {MESSAGE_BYTES_MAX} bytes.")
    return decoded(kind, data)


def _reflecting(servicer: Any, sessions: SessionsService) -> Callable[[Any, Context], Any]:
    async def answer(_: Any, context: Context) -> None:
        async def requests() -> AsyncIterator[Any]:
            while (data := await context.read()) is not grpc.aio.EOF:
                yield _small(reflection_pb2.ServerReflectionRequest, data)

        async def work(_: Principal) -> None:
            async for reply in servicer.ServerReflectionInfo(requests(), context):
                await context.write(reply)

        await sessions.answer(context, work, speaks=True)

    return answer


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
