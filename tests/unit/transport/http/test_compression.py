"""Gzip both ways: what is unpacked is bounded, what is packed pays and may be."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest

from sessions.model.errors import BadInput, SessileError, TooLarge
from sessions.model.types import UnixMs
from transport.auth.authenticator import Authenticator
from transport.http.middleware import Message, Receive, RequestContextMiddleware, Scope, Send

TEXT = b'{"text": "' + b"words " * 500 + b'"}'


class Echo:
    """Reads the body and sends it back under a type."""

    def __init__(self, **headers: str) -> None:
        self.headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self.seen: dict[bytes, bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen, body, more = dict(scope["headers"]), b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = [*self.headers, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def through(app: Echo, pieces: list[bytes], bytes_max: int = 100_000, **headers: str) -> list[Message]:
    sent: list[Message] = []
    incoming = [
        {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
        for number, piece in enumerate(pieces, 1)
    ]

    async def receive() -> Message:
        return incoming.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    async def refuse(error: SessileError, *_: Any) -> None:
        raise error

    access = Authenticator({}, clock=lambda: 0.0, now_ms=lambda: UnixMs(0))
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "headers": [*raw, (b"host", b"127.0.0.1")]}
    middleware = RequestContextMiddleware(app, access, bytes_max, lambda: "1", refuse)
    await middleware(scope, receive, send)
    return sent


async def test_a_packed_body_is_read_plain_however_it_is_cut() -> None:
    packed = gzip.compress(TEXT)
    for cut in (1, 7, len(packed)):
        pieces = [packed[at : at + cut] for at in range(0, len(packed), cut)]
        app = Echo(content_type="image/png")
        (_, body) = await through(app, pieces, content_encoding="gzip", content_length=str(len(packed)))
        assert body["body"] == TEXT
        assert b"content-encoding" not in app.seen and app.seen[b"transfer-encoding"] == b"chunked"


async def test_a_bomb_is_too_large_as_soon_as_it_is() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    with pytest.raises(TooLarge):
        await through(Echo(), [bomb], content_encoding="gzip")
    nested = [bomb[at : at + 1000] for at in range(0, len(bomb), 1000)]
    with pytest.raises(TooLarge):
        await through(Echo(), nested, content_encoding="gzip")


@pytest.mark.parametrize(
    "body",
    [b"{}", gzip.compress(TEXT)[:-3], gzip.compress(TEXT) + b"x", zlib.compress(TEXT), b""],
    ids=["plain", "cut", "more behind", "deflate", "empty"],
)
async def test_what_is_no_gzip_is_refused(body: bytes) -> None:
    with pytest.raises(BadInput):
        await through(Echo(), [body], content_encoding="gzip")


async def test_an_answer_that_pays_is_packed_for_who_takes_it() -> None:
    start, body = await through(Echo(content_type="application/json", etag='"a"'), [TEXT], accept_encoding="br, gzip")
    headers = dict(start["headers"])
    assert gzip.decompress(body["body"]) == TEXT and headers[b"content-length"] == str(len(body["body"])).encode()
    assert (headers[b"content-encoding"], headers[b"vary"], headers[b"etag"]) == (b"gzip", b"accept-encoding", b'W/"a"')
    large = TEXT * 100
    _, body = await through(Echo(content_type="text/plain"), [large], bytes_max=10**7, accept_encoding="*")
    assert gzip.decompress(body["body"]) == large


@pytest.mark.parametrize(
    ("headers", "accept", "body"),
    [
        ({"content_type": "application/json"}, "br", TEXT),
        ({"content_type": "application/json"}, "gzip;q=0, *", TEXT),
        ({"content_type": "application/json"}, "gzip", b"{}"),
        ({"content_type": "image/png"}, "gzip", TEXT),
        ({"content_type": "text/event-stream"}, "gzip", TEXT),
        ({"content_type": "application/json", "set_cookie": "a=b"}, "gzip", TEXT),
        ({"content_type": "application/json", "cache_control": "no-store"}, "gzip", TEXT),
    ],
)
async def test_every_other_answer_goes_as_it_is(headers: dict[str, str], accept: str, body: bytes) -> None:
    start, sent = await through(Echo(**headers), [body], accept_encoding=accept)
    assert sent["body"] == body and b"content-encoding" not in dict(start["headers"])
