"""What the server and its schema workers send each other, as frames of `worker_process`."""

from __future__ import annotations

import asyncio
from typing import BinaryIO, Final

import msgspec

from inference.worker_process import read_frame, receive_frame
from sessions.model.json_schema import SchemaFault
from sessions.model.schema_bounds import SchemaSize

FRAME_BYTES_MAX: Final = 16 << 20


class SchemaRequest(msgspec.Struct, frozen=True, array_like=True):
    """A JSON schema to be judged; with `value`, also a JSON value to be checked against it."""

    schema: bytes
    value: str | None = None


class SchemaReply(msgspec.Struct, frozen=True, array_like=True):
    """A worker's answer: `size` of a usable schema, or the `fault` of another one. `problem` says what is wrong with
    the value, if one was checked."""

    size: SchemaSize | None = None
    fault: SchemaFault | None = None
    problem: str | None = None


_requests = msgspec.msgpack.Decoder(SchemaRequest)
_replies = msgspec.msgpack.Decoder(SchemaReply)


def read_request(stream: BinaryIO) -> SchemaRequest | None:
    return read_frame(stream, _requests)


async def read_reply(stream: asyncio.StreamReader) -> SchemaReply:
    return await receive_frame(stream, _replies, FRAME_BYTES_MAX)
