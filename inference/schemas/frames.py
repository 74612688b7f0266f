"""Frames between the server and its schema workers: msgpack behind its length, over pipes."""

from __future__ import annotations

import asyncio
from typing import BinaryIO, Final

import msgspec

from sessions.model.json_schema import SchemaFault
from sessions.model.schema_bounds import SchemaSize

FRAME_BYTES_MAX: Final = 16 << 20


class SchemaRequest(msgspec.Struct, frozen=True, array_like=True):
    """A schema to be judged; with `value`, JSON too, that to be checked against it."""

    schema: bytes
    value: str | None = None


class SchemaReply(msgspec.Struct, frozen=True, array_like=True):
    """`size` or `fault` is there; `problem` is the value's."""

    size: SchemaSize | None = None
    fault: SchemaFault | None = None
    problem: str | None = None


_encode = msgspec.msgpack.Encoder().encode
_requests = msgspec.msgpack.Decoder(SchemaRequest)
_replies = msgspec.msgpack.Decoder(SchemaReply)


def encode_frame(message: SchemaRequest | SchemaReply) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(4, "little") + body


def read_request(stream: BinaryIO) -> SchemaRequest | None:
    """The next request; None: the server has gone."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    body = stream.read(int.from_bytes(head, "little"))
    return _requests.decode(body)


async def read_reply(stream: asyncio.StreamReader) -> SchemaReply:
    """Raises EOFError when the worker has ended, ValueError for what is no reply."""
    head = await stream.readexactly(4)
    size = int.from_bytes(head, "little")
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {size} bytes")
    return _replies.decode(await stream.readexactly(size))
