"""Bounds what is decoded, by a look at the bytes of a message: decoding can make an object of every two of them.

Walks the fields on the wire, without a look into texts and into JSON (`Struct`, `Value`), of which it counts the bytes.
Pure.
"""

from __future__ import annotations

from typing import Any, Final

from sessions.model.errors import BadInput, TooLarge
from transport.protocol.decoding import VALUES_MAX

SMALL_BYTES: Final = 64 * 1024  # a message below is decoded at once, whatever it holds
JSON_BYTES_MAX: Final = 512 * 1024  # all Structs and Values of one message

_JSON: Final = ("google.protobuf.Struct", "google.protobuf.Value")


def check_size(kind: Any, data: bytes) -> None:
    """Raises TooLarge if the encoded message has more fields or more bytes of JSON than allowed, and BadInput if it is
    malformed."""
    if len(data) <= SMALL_BYTES:
        return
    try:
        _walk(kind.DESCRIPTOR, memoryview(data))
    except IndexError as error:
        raise malformed(kind) from error


def malformed(kind: Any) -> BadInput:
    """Returns the error for bytes that do not decode as a message of this kind."""
    return BadInput("invalid_request", f"This is no {kind.DESCRIPTOR.name} of {kind.DESCRIPTOR.file.name}.")


def _walk(descriptor: Any, data: memoryview) -> None:
    fields = json_bytes = 0
    messages = [(descriptor, data)]
    while messages:
        descriptor, data = messages.pop()
        place = 0
        while place < len(data):
            fields += 1
            if fields > VALUES_MAX:
                raise TooLarge("too_large", f"A message has at most {VALUES_MAX} fields.")
            key, place = _varint(data, place)
            wire_type = key & 7
            if wire_type == 0:
                _, place = _varint(data, place)
            elif wire_type == 2:
                size, place = _varint(data, place)
                field = descriptor.fields_by_number.get(key >> 3)
                inside = None if field is None else field.message_type
                if inside is not None and inside.full_name in _JSON:
                    json_bytes += size
                elif inside is not None:
                    messages.append((inside, data[place : place + size]))
                place += size
            elif wire_type in (1, 5):
                place += 8 if wire_type == 1 else 4
            else:
                raise IndexError("a group, which no message of ours has")
            if json_bytes > JSON_BYTES_MAX:
                raise TooLarge("too_large", f"The JSON in a message has at most {JSON_BYTES_MAX} bytes over gRPC.")


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift >= 70:
            raise IndexError("a number of more than ten bytes")
