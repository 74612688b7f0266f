"""The descriptors of reflection v1 are those of v1alpha under another name."""

from __future__ import annotations

from grpc_reflection.v1alpha import reflection_pb2

from transport.grpc_api.public_services import V1, _described


def test_v1_has_the_messages_of_v1alpha() -> None:
    for _ in range(2):  # a second server of the process finds them there
        service = _described().FindServiceByName(V1)
    (method,) = service.methods
    assert method.input_type.full_name == "grpc.reflection.v1.ServerReflectionRequest"
    ours = [(field.number, field.name) for field in method.output_type.fields]
    assert ours == [(field.number, field.name) for field in reflection_pb2.ServerReflectionResponse.DESCRIPTOR.fields]
