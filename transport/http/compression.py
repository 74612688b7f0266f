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
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers, MutableHeaders

from sessions.model.errors import BadInput, TooLarge
from transport.http.middleware import App, Message, Receive, Scope, Send

PACKED_FROM_BYTES: Final = 1400  # below that it is one packet anyhow
AT_ONCE_BYTES: Final = 64 * 1024  # more is packed in a thread: the loop does not stand still for it
LEVEL: Final = 5
_TYPES: Final = re.compile(r"application/(json|javascript|manifest\+json|xml)|image/svg\+xml|text/(?!event-stream)")
_GZIP: Final = 16 + zlib.MAX_WBITS
_REFUSED: Final = re.compile(r"(gzip|\*)\s*;\s*q=0(\.0*)?\s*(,|$)")


@dataclass(eq=False, repr=False)
class Compression:
    """ASGI middleware, behind the check of credentials. `body_bytes_max`: of an unpacked body."""

    app: App
    body_bytes_max: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if headers.get("content-encoding", "").strip().lower() in ("gzip", "x-gzip"):
            plain = [(name, value) for name, value in scope["headers"] if name not in _OF_PACKED]
            scope = {**scope, "headers": [*plain, (b"transfer-encoding", b"chunked")]}
            receive = _unpacked(receive, self.body_bytes_max)
        if takes_gzip(headers.get("accept-encoding", "")) and scope["method"] != "HEAD":
            send = _Packer(send).send
        await self.app(scope, receive, send)


_OF_PACKED: Final = (b"content-encoding", b"content-length", b"transfer-encoding")


def takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding header takes gzip. One that names every encoding by `*` takes it too."""
    accepted = accepted.lower()
    return ("gzip" in accepted or "*" in accepted) and _REFUSED.search(accepted) is None


def _unpacked(receive: Receive, bytes_max: int) -> Receive:
    """Bodies of one gzip member. Raises TooLarge, and BadInput for what is no gzip."""
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

    return read


def _bad_body() -> BadInput:
    return BadInput("invalid_request", "The body of this request is not the gzip that its Content-Encoding promises.")


class _Packer:
    """Packs one answer, if it comes whole and is worth it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None  # held back until it is known whether the body comes in one piece

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if _packable(Headers(raw=message["headers"]), message["status"]):
                self._start = message
            else:
                await self._send(message)
            return
        start, self._start = self._start, None
        if start is not None:
            body = message.get("body", b"")
            if not message.get("more_body", False) and len(body) >= PACKED_FROM_BYTES:
                pack = len(body) <= AT_ONCE_BYTES
                packed = _packed(body) if pack else await asyncio.to_thread(_packed, body)
                message = {**message, "body": packed}
                _describe(MutableHeaders(raw=start["headers"]), len(packed))
            await self._send(start)
        await self._send(message)


def _packed(body: bytes) -> bytes:
    return gzip.compress(body, LEVEL, mtime=0)


def _packable(headers: Headers, status: int) -> bool:
    """By the head of an answer. The length is named where a body is whole."""
    return (
        status >= 200
        and int(headers.get("content-length", 0)) >= PACKED_FROM_BYTES
        and _TYPES.match(headers.get("content-type", "")) is not None
        and "content-encoding" not in headers
        and "set-cookie" not in headers
        and "no-store" not in headers.get("cache-control", "")
    )


def _describe(headers: MutableHeaders, length: int) -> None:
    headers["content-encoding"] = "gzip"
    headers["content-length"] = str(length)
    headers.add_vary_header("accept-encoding")
    if (etag := headers.get("etag", "")).startswith('"'):
        headers["etag"] = f"W/{etag}"  # the same file in other bytes
