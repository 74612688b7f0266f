"""A message that would become very many objects is refused by its bytes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf import struct_pb2

from sessions.model.commands import SessionCreate
from sessions.model.errors import BadInput, TooLarge
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api import translate
from transport.grpc_api.message_size import JSON_BYTES_MAX, SMALL_BYTES, check_size
from transport.grpc_api.service import decoded
from transport.protocol.decoding import VALUES_MAX


def nulls(number: int) -> Any:
    return struct_pb2.Struct(
        fields={"a": struct_pb2.Value(list_value=struct_pb2.ListValue(values=[struct_pb2.Value()] * number))}
    )


@pytest.mark.parametrize("nested", [False, True])
def test_the_json_of_a_message_has_a_bound(nested: bool) -> None:
    create = pb.SessionCreate(metadata=nulls(JSON_BYTES_MAX // 2 + 1))
    message: Any = pb.ConverseRequest(command=pb.Command(session_create=create)) if nested else create
    with pytest.raises(TooLarge, match="JSON"):
        decoded(type(message), message.SerializeToString())


def test_the_fields_of_a_message_have_a_bound() -> None:
    with pytest.raises(TooLarge, match="fields"):
        decoded(pb.MessageCreate, pb.MessageCreate(parts=[{}] * (VALUES_MAX + 1)).SerializeToString())


def test_a_long_text_is_no_matter() -> None:
    message = pb.MessageCreate(id="m", content="x" * 1_000_000)
    assert decoded(pb.MessageCreate, message.SerializeToString()) == message


def test_what_is_no_message_is_refused_or_left_to_the_decoder() -> None:
    chance = random.Random(7)
    for _ in range(20):
        try:
            check_size(pb.SessionCreate, chance.randbytes(SMALL_BYTES + 100))
        except (BadInput, TooLarge):
            continue
    with pytest.raises(BadInput, match="SessionCreate"):
        check_size(pb.SessionCreate, b"\x0b" * (SMALL_BYTES + 1))


def test_the_values_of_all_structs_of_a_message_are_counted() -> None:
    many = nulls(VALUES_MAX // 2)
    fits = pb.SessionCreate(tools=[pb.Tool(name="a", parameters=many)])
    assert isinstance(translate._Reading().fields_of(fits), dict)
    bomb = pb.SessionCreate(tools=[pb.Tool(name="a", parameters=many)] * 3)
    with pytest.raises(BadInput, match="values in one message"):
        translate.command_of(bomb, "session_create", id="c", session=None)
    assert SessionCreate is translate.COMMANDS["session_create"]
