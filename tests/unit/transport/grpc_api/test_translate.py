"""The words of `sessile.proto` are those of the project: events, items, commands, both ways; and the made modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import grpc
import msgspec
import pytest
from msgspec import UNSET

from sessions.model import commands as cm
from sessions.model.errors import BadInput
from sessions.model.events import AnyEvent, ItemCreated, OutputTextDelta, Record
from sessions.model.types import (
    CallId,
    CommandId,
    Epoch,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    ItemId,
    Message,
    RunFile,
    Sampling,
    SessionId,
    UnixMs,
)
from transport.errors import CODES
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api import translate
from transport.protocol.delta_merge import Span

ROOT = Path(__file__).resolve().parents[4]
EVENTS = get_args(AnyEvent)


def test_what_is_made_from_the_proto_is_up_to_date() -> None:
    subprocess.run([sys.executable, "deploy/generate_protos.py", "--check"], cwd=ROOT, check=True)


def fields_of(message: Any, name: str) -> set[str]:
    """The fields of the message that a field of `message` holds."""
    return set(message.DESCRIPTOR.fields_by_name[name].message_type.fields_by_name)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__struct_config__.tag)
def test_every_event_has_its_message(event: Any) -> None:
    assert set(event.__struct_fields__) == fields_of(pb.Event, event.__struct_config__.tag.replace(".", "_"))


def test_the_proto_has_no_event_of_its_own() -> None:
    (body,) = [each for each in pb.Event.DESCRIPTOR.oneofs if each.name == "event"]
    assert {field.name for field in body.fields} == {e.__struct_config__.tag.replace(".", "_") for e in EVENTS}


@pytest.mark.parametrize("item", [Message, FunctionCall, FunctionCallOutput])
def test_every_item_has_its_fields(item: Any) -> None:
    assert set(item.__struct_fields__) <= set(pb.Item.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize("field", sorted(translate.COMMANDS))
def test_every_command_has_its_message(field: str) -> None:
    sampled = set(Sampling.__struct_fields__)
    wanted = set(translate.COMMANDS[field].__struct_fields__)
    if sampled <= wanted:
        wanted = (wanted - sampled) | {"sampling"}
    told = fields_of(pb.Command, field)
    ours = {"parts": "content", "at_root": "parent_id", "no_response": "respond", "clear": "title"} | {
        "no_knowledge": "knowledge"
    }
    assert wanted == {ours.get(name, name) for name in told}
    assert sampled == set(pb.Sampling.DESCRIPTOR.fields_by_name)


def test_every_code_has_a_status() -> None:
    for code, row in CODES.items():
        assert grpc.StatusCode[row.grpc] is not grpc.StatusCode.OK, code


def test_a_delta_is_told_the_same_on_both_ways() -> None:
    """The short way for what is nearly all there is says what the long one says."""
    plain: dict[str, Any] = {"response_id": "r", "sequence_number": 4, "item_id": "i", "output_index": 0}
    event = OutputTextDelta(**plain, content_index=1, delta="été")
    short = translate.event_of(SessionId("s"), Epoch("e"), Span(Record(9, 5, event), 7))  # type: ignore[arg-type]
    long = pb.Event(session="s", epoch="e", offset=9, first_offset=7, at=5)
    translate.fill(long.response_output_text_delta, event)
    assert short == long
    logged = msgspec.structs.replace(event, logprobs=({"token": "a", "logprob": -0.5, "bytes": [97]},))
    told = translate.event_of(SessionId("s"), Epoch("e"), Span(Record(9, 5, logged), None))  # type: ignore[arg-type]
    assert told.response_output_text_delta.logprobs[0].struct_value["token"] == "a"


def test_what_proto_cannot_say_as_json_does() -> None:
    def read(field: str, message: Any) -> Any:
        return translate.command_of(message, field, id="made", session=None)

    absent = read("message_create", pb.MessageCreate(session="s", content="Hi"))
    assert absent == cm.MessageCreate(id=CommandId("made"), session=SessionId("s"), content="Hi")
    assert absent.parent_id is UNSET
    sampling = pb.Sampling(temperature=0, stop=["a", "b"], logit_bias={"7": -1})
    sampling.tool_choice.string_value = "none"
    sampling.text.format.update({"type": "json_schema", "schema": {"maxLength": 3}})
    told = read(
        "message_create",
        pb.MessageCreate(
            id="m",
            session="s",
            parts=[pb.ContentPart(type="input_text", text="Hi")],
            at_root=True,
            no_response=True,
            sampling=sampling,
        ),
    )
    assert told.content == (InputText("Hi"),) and told.parent_id is None and not told.respond
    assert (told.temperature, told.stop, told.logit_bias, told.tool_choice) == (0, ("a", "b"), {"7": -1}, "none")
    assert told.text.format == {"type": "json_schema", "schema": {"maxLength": 3}}
    assert isinstance(told.text.format["schema"]["maxLength"], int)
    below = read("response_create", pb.ResponseCreate(session="s", parent_id="i"))
    assert below.parent_id == ItemId("i")
    update = read("session_update", pb.SessionUpdate(session="s", title="T", clear=["metadata", "tools"]))
    assert (update.title, update.metadata, update.tools, update.instructions) == ("T", None, (), UNSET)
    assert read("tool_output", pb.ToolOutput(session="s", call_id="c")).output == ""


def test_files_of_code_go_both_ways() -> None:
    tools = [pb.Tool(name="code", server=True, file_ids=["file-1"]), pb.Tool(name="other", server=True)]
    create = translate.command_of(pb.SessionCreate(tools=tools), "session_create", id="made", session=None)
    assert isinstance(create, cm.SessionCreate) and [tool.file_ids for tool in create.tools] == [("file-1",), UNSET]
    file = RunFile(file_id="file-2", path="a/b.csv", size=3, source="file-1")
    output = FunctionCallOutput(
        id=ItemId("i"), parent_id=None, call_id=CallId("c"), output="x", created_at=UnixMs(1), files=(file,)
    )
    event = translate.event_of(SessionId("s"), Epoch("e"), Span(Record(1, UnixMs(1), ItemCreated(item=output)), None))
    (told,) = event.item_created.item.files
    assert told == pb.RunFile(file_id="file-2", path="a/b.csv", size=3, source="file-1")


@pytest.mark.parametrize(
    ("field", "message", "param"),
    [
        ("message_create", pb.MessageCreate(session="a b", content="Hi"), "session"),
        ("message_create", pb.MessageCreate(session="s", parent_id="i", at_root=True), "at_root"),
        ("message_create", pb.MessageCreate(session="s", sampling=pb.Sampling(seed=-1)), "seed"),
        (
            "message_create",
            pb.MessageCreate(session="s", sampling=pb.Sampling(temperature=float("nan"))),
            "temperature",
        ),
        ("session_update", pb.SessionUpdate(session="s", title="T", clear=["title"]), "clear"),
        ("session_update", pb.SessionUpdate(session="s", clear=["epoch"]), "clear"),
        ("session_create", pb.SessionCreate(id="a b"), "id"),
    ],
)
def test_what_is_refused(field: str, message: Any, param: str) -> None:
    with pytest.raises(BadInput) as refused:
        translate.command_of(message, field, id="made", session=None)
    assert refused.value.param == param


def test_numbers_that_json_cannot_say_are_refused() -> None:
    message = pb.SessionCreate()
    message.metadata["x"] = float("inf")
    with pytest.raises(BadInput):
        translate.command_of(message, "session_create", id="made", session=None)
