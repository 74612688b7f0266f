"""Translates commands and events to and from the messages of `sessile.proto`. Pure.

Both have the same names, so that one walk over the fields does for every message; where the .proto differs, because it
has no null and no union, the few functions below say how. What comes in is checked by the very types that check frames
of the WebSocket door, so both refuse the same things with the same words.

Invariant: every event, item and command has its place in the .proto; a test walks them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast, get_args

import msgspec
from google.protobuf import json_format
from google.protobuf.message import Message
from msgspec import UNSET

from sessions.model.commands import ClientCommand
from sessions.model.errors import BadInput
from sessions.model.events import OutputTextDelta
from sessions.model.types import INTEGER_MAX, Epoch, SessionId
from transport.grpc_api import sessile_pb2 as pb
from transport.protocol.decoding import VALUES_MAX, BadFrame, invalid, unacceptable
from transport.protocol.delta_merge import Span

COMMANDS: Final[dict[str, type[msgspec.Struct]]] = {
    str(each.__struct_config__.tag).replace(".", "_"): each for each in get_args(ClientCommand)
}
"""The type of each command, by the name of its field in the message `Command`."""

_STRUCT: Final = "google.protobuf.Struct"
_VALUE: Final = "google.protobuf.Value"
# Messages nest 100 deep at most, those around a Struct or Value of an event included.
_OBJECT_LEVELS: Final = 3  # a Struct, its entry, its Value
_LIST_LEVELS: Final = 2
_LEVELS: Final = 86
_CLEARABLE: Final = (
    *("title", "metadata", "instructions", "temperature", "max_output_tokens"),
    *("context_policy", "compact_threshold", "knowledge"),
)
_CLEARED: Final[dict[str, Any]] = {
    **dict.fromkeys(_CLEARABLE),
    "tools": [],
}

# == out ===============================================================================================================


def event_of(session: SessionId, epoch: Epoch, span: Span) -> pb.Event:
    """Returns an event as readers see it, without the record's `private` part."""
    record, first_offset = span
    event = record.event
    message = pb.Event(session=session, epoch=epoch, offset=record.offset, first_offset=first_offset, at=record.at)
    if type(event) is OutputTextDelta and not event.logprobs and event.usage is UNSET:  # nearly all there is
        message.response_output_text_delta.CopyFrom(
            pb.TextDelta(
                response_id=event.response_id,
                sequence_number=event.sequence_number,
                item_id=event.item_id,
                output_index=event.output_index,
                content_index=event.content_index,
                delta=event.delta,
            )
        )
        return message
    body: Message = getattr(message, str(event.__struct_config__.tag).replace(".", "_"))
    body.SetInParent()
    fill(body, event)
    return message


def state_of(session: SessionId, epoch: Epoch, offset: int, state: Mapping[str, Any]) -> pb.State:
    message = pb.State(session=session, epoch=epoch, offset=offset)
    fill(message, state)
    return message


def fill(message: Message, given: Any) -> None:
    """Copies the fields of a struct or a mapping into the message's fields of the same names; leaves out those that are
    null or unset."""
    fields = message.DESCRIPTOR.fields_by_name
    if isinstance(given, Mapping):
        pairs: Iterable[tuple[str, Any]] = given.items()
    else:
        pairs = ((name, getattr(given, name)) for name in given.__struct_fields__)
        if given.__struct_config__.tag is not None and "type" in fields:
            message.type = given.__struct_config__.tag  # type: ignore[attr-defined]  # it was just looked up
    for name, value in pairs:
        if value is not None and value is not UNSET:
            _put(message, fields[name], value)


def _put(message: Message, field: Any, value: Any) -> None:
    name, kind = field.name, field.message_type
    if kind is None:
        if field.is_repeated:
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    elif kind.GetOptions().map_entry:
        _put_map(getattr(message, name), kind.fields_by_name["value"], value)
    elif field.is_repeated:
        entries = getattr(message, name)
        for each in value:
            _one(entries.add(), each)
    else:
        body: Message = getattr(message, name)
        body.SetInParent()
        _one(body, value)


def _put_map(entries: Any, field: Any, value: Mapping[str, Any]) -> None:
    if field.message_type is None:
        entries.update(value)
        return
    for key, each in value.items():
        _one(entries[key], each)


def _one(message: Message, value: Any) -> None:
    if message.DESCRIPTOR.full_name not in (_STRUCT, _VALUE):
        fill(message, value)
        return
    try:
        json_format.ParseDict(msgspec.to_builtins(value), message)
    except json_format.ParseError as error:
        raise too_deep() from error


def too_deep() -> BadInput:
    """Returns the error for JSON in a session, which came through another door and nests too deep for gRPC."""
    return BadInput("too_large", "The session holds JSON that nests deeper than gRPC carries: use HTTP or WebSocket.")


# == in ================================================================================================================


def command_of(message: Message, field: str, *, id: str, session: str | None) -> ClientCommand:
    """Returns the command that a message is, by its field name in `Command`. `id` is used if the message has no id.
    `session` is the session of the conversation in which it came. Raises BadInput."""
    try:
        fields = _Reading().fields_of(message)
    except BadFrame as error:
        raise BadInput("invalid_request", f"{error.reason}.") from error
    fields["id"] = fields.get("id") or id
    if session is not None:
        if fields.get("session", session) != session:
            raise BadInput("invalid_request", "session: this conversation is about another one.", param="session")
        fields["session"] = session
    _adapt(fields, field)
    try:
        problem = unacceptable(cast("dict[object, object]", fields))
        if problem is not None:
            raise BadInput("invalid_request", f"{problem[0]}: {problem[1]}", param=problem[0])
        return msgspec.convert(fields, COMMANDS[field])  # type: ignore[return-value]
    except msgspec.ValidationError as error:
        raise invalid(error) from error
    except BadFrame as error:
        raise BadInput("invalid_request", f"{error.reason}.") from error


def _adapt(fields: dict[str, Any], field: str) -> None:
    """Changes the fields of a message where proto3 cannot say what JSON does: null, absence, unions."""
    if field in ("message_create", "message_edit", "response_steer"):
        parts = fields.pop("parts", None)
        fields["content"] = parts or fields.get("content", "")
        if field != "response_steer":
            fields["respond"] = not fields.pop("no_response", False)
    if fields.pop("no_knowledge", False):
        if "knowledge" in fields:
            raise BadInput("invalid_request", "no_knowledge: there is knowledge besides.", param="no_knowledge")
        fields["knowledge"] = None
    if fields.pop("at_root", False):
        if "parent_id" in fields:
            raise BadInput("invalid_request", "at_root: there is a parent_id besides.", param="at_root")
        fields["parent_id"] = None
    fields.update(fields.pop("sampling", {}))
    if field == "feedback_set":
        fields.setdefault("rating", None)
    if field == "tool_output":
        fields.setdefault("output", "")
    if field == "session_update":
        for name in fields.pop("clear", ()):
            if name not in _CLEARED:
                raise BadInput("invalid_request", f"clear: {name!r} is none of {', '.join(_CLEARED)}.", param="clear")
            if name in fields:
                raise BadInput("invalid_request", f"clear: {name} is given besides.", param="clear")
            fields[name] = _CLEARED[name]


class _Reading:
    """Reads one message into the values that its JSON form has. It counts the values in Structs, and stops at too
    many."""

    def __init__(self) -> None:
        self._values = 0

    def fields_of(self, message: Message) -> dict[str, Any]:
        """Returns the set fields of a message by name. Raises BadInput for values that JSON does not have, BadFrame for
        too many values."""
        fields: dict[str, Any] = {}
        for field, value in message.ListFields():
            kind = field.message_type
            if kind is None:
                fields[field.name] = list(value) if field.is_repeated else value
            elif kind.GetOptions().map_entry:
                fields[field.name] = dict(value)
            elif field.is_repeated:
                fields[field.name] = [self._one(each) for each in value]
            else:
                fields[field.name] = self._one(value)
        return fields

    def _one(self, message: Any) -> Any:
        name = message.DESCRIPTOR.full_name
        if name == _STRUCT:
            return self._object(message, _LEVELS)
        return self._value(message, _LEVELS) if name == _VALUE else self.fields_of(message)

    def _object(self, struct: Any, levels: int) -> dict[str, Any]:
        self._count(len(struct.fields))
        return {name: self._value(each, levels - _OBJECT_LEVELS) for name, each in struct.fields.items()}

    def _value(self, value: Any, levels: int) -> Any:
        """Returns a JSON value; whole numbers, which a Struct has as doubles only, become integers. Raises BadInput for
        numbers that are not finite and for nesting that is too deep to be sent back in an event."""
        if levels < 0:
            text = "It nests deeper than gRPC carries (28 objects, 43 lists): use another door."
            raise BadInput("invalid_request", text)
        match value.WhichOneof("kind"):
            case "number_value":
                number: float = value.number_value
                if not math.isfinite(number):
                    raise BadInput("invalid_request", "a number must be finite.")
                return int(number) if number.is_integer() and abs(number) <= INTEGER_MAX else number
            case "string_value":
                return value.string_value
            case "bool_value":
                return value.bool_value
            case "struct_value":
                return self._object(value.struct_value, levels)
            case "list_value":
                values = value.list_value.values
                self._count(len(values))
                return [self._value(each, levels - _LIST_LEVELS) for each in values]
            case _:
                return None

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > VALUES_MAX:
            raise BadFrame(f"more than {VALUES_MAX} values in one message")
