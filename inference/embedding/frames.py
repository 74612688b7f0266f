"""What the server and its embedding workers send each other, as frames of `worker_process`.

A worker answers every request once, in order; `error` in place of a result says why there is none.
"""

from __future__ import annotations

import asyncio
from typing import BinaryIO, Final

import msgspec

from inference.worker_process import read_frame, receive_frame
from sessions.model.errors import Unavailable

FRAME_BYTES_MAX: Final = 64 << 20


class EmbedBatch(msgspec.Struct, frozen=True, tag="embed", array_like=True):
    """Inputs for one run of the model: texts, or token ids without the model's special tokens."""

    inputs: tuple[str | tuple[int, ...], ...]


class RankBatch(msgspec.Struct, frozen=True, tag="rank", array_like=True):
    query: str
    documents: tuple[str, ...]


class SplitText(msgspec.Struct, frozen=True, tag="split", array_like=True):
    text: str


class DecodeTokens(msgspec.Struct, frozen=True, tag="decode", array_like=True):
    inputs: tuple[tuple[int, ...], ...]


WorkerRequest = EmbedBatch | RankBatch | SplitText | DecodeTokens


class EmbeddingReply(msgspec.Struct, frozen=True, array_like=True):
    """A worker's answer. `refused`: the index of an input that `error` is about; -1: the error is about none of
    them."""

    vectors: tuple[bytes, ...] = ()
    scores: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    tokens: int = 0
    error: str | None = None
    refused: int = -1
    too_long: bool = False


_requests: msgspec.msgpack.Decoder[WorkerRequest] = msgspec.msgpack.Decoder(WorkerRequest)
_replies = msgspec.msgpack.Decoder(EmbeddingReply)


def embeddings_unavailable(message: str) -> Unavailable:
    return Unavailable("embeddings_unavailable", message, retry_after_ms=1_000)


def read_request(stream: BinaryIO) -> WorkerRequest | None:
    return read_frame(stream, _requests)


async def read_reply(stream: asyncio.StreamReader) -> EmbeddingReply:
    return await receive_frame(stream, _replies, FRAME_BYTES_MAX)
