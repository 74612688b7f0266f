"""Frames between the server and its moderation worker: msgpack behind its length, over pipes.

A worker answers every request once, in order; `error` in place of a result says why there is none. Only these two
ends ever use it, both of one version.
"""

from __future__ import annotations

import asyncio
from typing import Any, BinaryIO, Final

import msgspec

FRAME_BYTES_MAX: Final = 64 << 20


class LoadRequest(msgspec.Struct, frozen=True, tag="load", array_like=True):
    """Adds these policies (JSON) to those that are there, and loads these models."""

    policies: bytes
    models: tuple[str, ...]


class JudgeItem(msgspec.Struct, frozen=True, array_like=True):
    """A text, the models that judge it, and the version of the policy whose input side is scanned for ("": none)."""

    text: str
    models: tuple[str, ...]
    version: str


class JudgeRequest(msgspec.Struct, frozen=True, tag="judge", array_like=True):
    items: tuple[JudgeItem, ...]


class JudgeResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of an item; text in place of a part that failed says why."""

    scores: dict[str, Any] | str  # by model
    hits: list[Any] | str  # (hit, start, end) each


Request = LoadRequest | JudgeRequest


class WorkerReply(msgspec.Struct, frozen=True, array_like=True):
    versions: dict[str, str] = {}  # of the models, for LoadRequest
    results: list[JudgeResult] = []  # for JudgeRequest, by item
    error: str | None = None


_encode = msgspec.msgpack.Encoder().encode
_requests = msgspec.msgpack.Decoder(Request)
_replies = msgspec.msgpack.Decoder(WorkerReply)


def encode_frame(message: Request | WorkerReply) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(4, "little") + body


async def read_reply(stream: asyncio.StreamReader) -> WorkerReply:
    """Raises IncompleteReadError when the worker is gone."""
    size = int.from_bytes(await stream.readexactly(4), "little")
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {size} bytes")
    return _replies.decode(await stream.readexactly(size))


def read_request(stream: BinaryIO) -> Request | None:
    """None when the server is gone."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    body = stream.read(int.from_bytes(head, "little"))
    request: Request = _requests.decode(body)
    return request
