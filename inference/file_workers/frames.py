"""Defines what the server and its file workers send each other, as frames of `worker_process`."""

from __future__ import annotations

import asyncio
from typing import BinaryIO, Final, Literal

import msgspec

from inference.worker_process import read_frame, receive_frame
from sessions.model.errors import BadInput
from sessions.model.knowledge.documents import DocumentText
from sessions.model.knowledge.images import DECODED_BYTES_MAX, DecodedImage

REPLY_BYTES_MAX: Final = 64 << 20

FaultCode = Literal[
    "file_type_unsupported",
    "file_unreadable",
    "file_too_complex",
    "image_type_unsupported",
    "image_unreadable",
    "image_too_complex",
]


class DocumentRequest(msgspec.Struct, frozen=True, array_like=True, tag="document"):
    """Requests the text of a document."""

    content: bytes
    filename: str
    media_type: str


class ImageRequest(msgspec.Struct, frozen=True, array_like=True, tag="image"):
    """Requests an image decoded, with edges of `edge_max` pixels and `bytes_max` bytes at most."""

    content: bytes
    edge_max: int
    bytes_max: int = DECODED_BYTES_MAX


FileRequest = DocumentRequest | ImageRequest


class FileFault(msgspec.Struct, frozen=True, array_like=True):
    code: FaultCode
    message: str


class FileReply(msgspec.Struct, frozen=True, array_like=True):
    """A worker's answer: a document, an image or a fault. A reply with none of them reports that the worker is
    ready."""

    document: DocumentText | None = None
    image: DecodedImage | None = None
    fault: FileFault | None = None


_requests: msgspec.msgpack.Decoder[FileRequest] = msgspec.msgpack.Decoder(FileRequest)
_replies = msgspec.msgpack.Decoder(FileReply)


def fault_reply(error: BadInput) -> FileReply:
    """Returns the reply that refuses a file. Raises ValueError for an error with any other code."""
    return FileReply(fault=msgspec.convert((error.code, error.public_message), FileFault))


def read_request(stream: BinaryIO) -> FileRequest | None:
    return read_frame(stream, _requests)


def decode_reply(data: bytes) -> FileReply:
    """Decodes a worker's answer. Raises ValueError for bytes that are none."""
    return _replies.decode(data)


async def read_reply(stream: asyncio.StreamReader) -> FileReply:
    return await receive_frame(stream, _replies, REPLY_BYTES_MAX)
