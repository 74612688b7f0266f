"""What the server and its document workers send each other, as frames of `worker_process`."""

from __future__ import annotations

import asyncio
from typing import BinaryIO, Final, Literal

import msgspec

from inference.worker_process import read_frame, receive_frame
from sessions.model.knowledge.documents import DocumentText

REPLY_BYTES_MAX: Final = 64 << 20

FaultCode = Literal["file_type_unsupported", "file_unreadable", "file_too_complex"]


class DocumentRequest(msgspec.Struct, frozen=True, array_like=True):
    content: bytes
    filename: str
    media_type: str


class DocumentFault(msgspec.Struct, frozen=True, array_like=True):
    code: FaultCode
    message: str


class DocumentReply(msgspec.Struct, frozen=True, array_like=True):
    """A worker's answer: a document or a fault. A reply with neither reports that the worker is ready."""

    document: DocumentText | None = None
    fault: DocumentFault | None = None


_requests = msgspec.msgpack.Decoder(DocumentRequest)
_replies = msgspec.msgpack.Decoder(DocumentReply)


def read_request(stream: BinaryIO) -> DocumentRequest | None:
    return read_frame(stream, _requests)


def decode_reply(data: bytes) -> DocumentReply:
    """Decodes a worker's answer. Raises ValueError for bytes that are none."""
    return _replies.decode(data)


async def read_reply(stream: asyncio.StreamReader) -> DocumentReply:
    return await receive_frame(stream, _replies, REPLY_BYTES_MAX)
