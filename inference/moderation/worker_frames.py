"""What the server and its moderation worker send each other, as frames of `worker_process`.

A worker answers every request once, in order; `error` in place of a result says why there is none. Only these two
ends ever use it, both of one version.
"""

from __future__ import annotations

import asyncio
from typing import Any, BinaryIO, Final

import msgspec

from inference.worker_process import read_frame, receive_frame

FRAME_BYTES_MAX: Final = 64 << 20


class LoadRequest(msgspec.Struct, frozen=True, tag="load", array_like=True):
    """A request to add these policies (JSON) to those that are loaded, and to load these models."""

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
    """The results of one text. A part that is a text instead of a result failed, and the text is the reason."""

    scores: dict[str, Any] | str  # by model
    hits: list[Any] | str  # (hit, start, end) each


Request = LoadRequest | JudgeRequest


class WorkerReply(msgspec.Struct, frozen=True, array_like=True):
    versions: dict[str, str] = {}  # in the answer to LoadRequest: the models' versions
    results: list[JudgeResult] = []  # in the answer to JudgeRequest: a result for each item
    error: str | None = None


_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies = msgspec.msgpack.Decoder(WorkerReply)


def read_request(stream: BinaryIO) -> Request | None:
    return read_frame(stream, _requests)


async def read_reply(stream: asyncio.StreamReader) -> WorkerReply:
    return await receive_frame(stream, _replies, FRAME_BYTES_MAX)
