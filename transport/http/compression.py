"""Gzip both ways: bodies that come compressed are unpacked as they are read, answers are packed for who takes that.

A request's body is unpacked only as a route reads it, behind the check of its credential, and never beyond the size
that a plain one may have: a bomb costs what a whole body costs. Answers are packed where they are sent in one piece
and it pays; streams of events never are, because an event has to arrive when it is written. Nor is what sets a cookie
or may not be stored: sizes of compressed secrets beside a stranger's words say something about the secrets (BREACH).
"""

from __future__ import annotations

import asyncio
import gzip
import re
import zlib
from collections.abc import Mapping
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Receive, Scope

from sessions.model.errors import BadInput, TooLarge

PACKED_FROM_BYTES: Final = 1400  # smaller bodies are one packet anyhow
AT_ONCE_BYTES: Final = 64 * 1024  # larger bodies are compressed in a thread, so that the loop does not wait
LEVEL: Final = 5
_TYPES: Final = re.compile(r"application/(json|javascript|manifest\+json|xml)|image/svg\+xml|text/(?!event-stream)")
_GZIP: Final = 16 + zlib.MAX_WBITS
_REFUSED: Final = re.compile(r"(gzip|\*)\s*;\s*q=0(\.0*)?\s*(,|$)")
_OF_PACKED: Final = (b"content-encoding", b"content-length", b"transfer-encoding")


# -- in ---------------------------------------------------------------------------------------------------------------


def is_packed(headers: Mapping[bytes, bytes]) -> bool:
    """Returns whether a request says that its body is gzip."""
    return headers.get(b"content-encoding", b"").strip().lower() in (b"gzip", b"x-gzip")


def unpacked(scope: Scope, receive: Receive, bytes_max: int) -> tuple[Scope, Receive]:
    """Returns a gzip request as a plain one. Reading its body raises TooLarge, and BadInput if it is no whole gzip."""
    plain = [(name, value) for name, value in scope["headers"] if name not in _OF_PACKED]
    unpacker, taken = zlib.decompressobj(_GZIP), 0

    async def read() -> Message:
        nonlocal taken
        message = await receive()
        if message["type"] != "http.request":
            return message
        try:
            body = unpacker.decompress(message.get("body", b""), bytes_max + 1 - taken)
        except zlib.error as error:
            raise _bad_body() from error
        taken += len(body)
        if taken > bytes_max:
            raise TooLarge("too_large", f"A request body has at most {bytes_max} bytes, unpacked.")
        if unpacker.unused_data or not (message.get("more_body") or unpacker.eof):
            raise _bad_body()
        return {**message, "body": body}

    return {**scope, "headers": [*plain, (b"transfer-encoding", b"chunked")]}, read


def _bad_body() -> BadInput:
    return BadInput("invalid_request", "The body of this request is not the gzip that its Content-Encoding promises.")


# -- out --------------------------------------------------------------------------------------------------------------


def takes_gzip(accepted: str) -> bool:
    """Returns whether an Accept-Encoding header allows gzip; `*` allows it too."""
    accepted = accepted.lower()
    return ("gzip" in accepted or "*" in accepted) and _REFUSED.search(accepted) is None


def worth_packing(media_type: str, length: int) -> bool:
    """Returns whether a body of this type and length becomes smaller enough to be worth compressing."""
    return length >= PACKED_FROM_BYTES and _TYPES.match(media_type) is not None


def packable(start: Message) -> bool:
    """Returns whether an answer with this start message may be compressed and is worth it."""
    headers = Headers(raw=start["headers"])
    return (
        worth_packing(headers.get("content-type", ""), int(headers.get("content-length", 0)))
        and "content-encoding" not in headers
        and "set-cookie" not in headers
        and "no-store" not in headers.get("cache-control", "")
    )


async def pack(start: Message, message: Message) -> Message:
    """Compresses the body of a `packable` answer and says so in its `start`. A first message without the whole body
    is returned unchanged."""
    body = message.get("body", b"")
    if message.get("more_body", False) or len(body) < PACKED_FROM_BYTES:
        return message
    packed = gzipped(body) if len(body) <= AT_ONCE_BYTES else await asyncio.to_thread(gzipped, body)
    headers = MutableHeaders(raw=start["headers"])
    headers["content-encoding"] = "gzip"
    headers["content-length"] = str(len(packed))
    headers.add_vary_header("accept-encoding")
    if (etag := headers.get("etag", "")).startswith('"'):
        headers["etag"] = f"W/{etag}"  # the same file in other bytes
    return {**message, "body": packed}


def gzipped(body: bytes) -> bytes:
    return gzip.compress(body, LEVEL, mtime=0)
