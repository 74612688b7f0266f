"""HTTP below the routes: bodies, headers, methods, streams, and the limits of a connection."""

from __future__ import annotations

import asyncio
import gzip
import random
import socket
import weakref
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from sessions.model.errors import BadInput, SessileError, TooLarge
from sessions.model.types import Principal, TenantId, UnixMs
from tests.support.doors.transport import gateway_over, http_client, memory_sessions
from transport.auth.authenticator import Authenticator, key_digest
from transport.http import http_connection, sse
from transport.http.headers import read_retry_headers
from transport.http.middleware import Message, Receive, RequestContextMiddleware, Scope, Send
from transport.http.timer_wheel import SLOT_S, TimerWheel
from transport.http_api.server import Server

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


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw})


def test_a_key_has_a_length() -> None:
    assert read_retry_headers(request()).idempotency_key is None
    assert read_retry_headers(request(idempotency_key="k")).idempotency_key == "k"
    for key in ("", "k" * 256):
        with pytest.raises(BadInput):
            read_retry_headers(request(idempotency_key=key))


@pytest.fixture
async def keyed() -> AsyncIterator[int]:
    keys = {key_digest("good"): Principal(tenant=TenantId("acme"), key_id="k")}
    access = Authenticator(keys, clock=lambda: 0.0, now_ms=lambda: UnixMs(1))
    server = Server(gateway_over(await memory_sessions(), access), host="127.0.0.1", port=0, web=None)
    await server.start()
    yield server.port
    await server.stop()


REFUSED_HEAD = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n%s\r\n"


@pytest.mark.parametrize("whole", [True, False])
async def test_a_refusal_comes_before_the_body_and_ends_the_connection_behind_it(keyed: int, whole: bool) -> None:
    body = b"x" * 40_000
    reader, writer = await asyncio.open_connection("127.0.0.1", keyed)
    writer.write(REFUSED_HEAD % (len(body), b"") + (body if whole else b""))
    async with asyncio.timeout(60):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401 ")
        if not whole:
            writer.write(body)
        assert b'"invalid_api_key"' in await reader.read()  # to the end, which is no reset
    writer.close()


async def test_a_connection_that_has_shown_a_key_goes_on_after_a_refusal(keyed: int) -> None:
    """And a refusal behind an answer that is still written comes behind it."""
    good, bad = (REFUSED_HEAD % (2, b"authorization: Bearer %s\r\n" % key) + b"{}" for key in (b"good", b"bad"))
    reader, writer = await asyncio.open_connection("127.0.0.1", keyed)
    writer.write(good)
    statuses = []
    async with asyncio.timeout(60):
        for following in (bad, good + bad, b"", good, b""):
            head = await reader.readuntil(b"\r\n\r\n")
            statuses.append(head.split()[1])
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
            writer.write(following)
    assert statuses == [b"400", b"401", b"400", b"401", b"400"]
    writer.close()


@pytest.mark.parametrize("request_head", [b"GET / HTTP/1.0", b"HEAD / HTTP/1.1", b"GET / HTTP/1.1"])
async def test_a_client_that_closes_its_side_behind_a_get_is_answered(request_head: bytes) -> None:
    state, half_closed = ServerState(), asyncio.Event()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await half_closed.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"here"})

    class Connection(http_connection.HttpConnection):
        def eof_received(self) -> bool:  # type: ignore[override]
            asyncio.get_running_loop().call_soon(half_closed.set)
            return super().eof_received()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_connection, "HttpConnection", Connection)
        listener = await http_connection.listen(app, state, ("127.0.0.1", 0))
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        writer.write(request_head + b"\r\nhost: localhost\r\n\r\n")
        writer.write_eof()
        async with asyncio.timeout(60):
            whole = await reader.read()
    assert whole.startswith(b"HTTP/1.1 200 OK\r\n") and b"connection: close" in whole
    assert whole.endswith(b"\r\n\r\n" if request_head.startswith(b"HEAD") else b"here")
    writer.close()
    listener.close()


@pytest.mark.parametrize("request_line", [b"GET / HTTP/1.1", b"POST / HTTP/1.1"])
async def test_a_client_that_has_left_is_noticed_before_its_answer_begins(
    request_line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "HALF_CLOSED_S", 0.05)
    said: list[str] = []

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        while "http.disconnect" not in said:
            said.append((await receive())["type"])

    listener = await http_connection.listen(app, ServerState(), ("127.0.0.1", 0))
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    writer.write(request_line + b"\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}")
    writer.write_eof()
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    assert said == ["http.request", "http.disconnect"]
    writer.close()
    listener.close()


@pytest.mark.parametrize("size", [200_000, 8_000_000], ids=["whole", "paused"])
async def test_a_client_that_takes_nothing_of_its_answer_is_cut(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "WRITE_S", 0.05)
    state = ServerState()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % (2 * size))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for more in (True, False):
            await send({"type": "http.response.body", "body": bytes(size), "more_body": more})

    listener = await http_connection.listen(app, state, ("127.0.0.1", 0))
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        for listening in listener.sockets:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, listener.sockets[0].getsockname())
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        lost = asyncio.Event()
        losing = http_connection.HttpConnection.connection_lost

        def connection_lost(self: http_connection.HttpConnection, exc: Exception | None) -> None:
            losing(self, exc)
            lost.set()

        monkeypatch.setattr(http_connection.HttpConnection, "connection_lost", connection_lost)
        async with asyncio.timeout(60):
            await lost.wait()
    assert not state.connections
    listener.close()


@pytest.fixture
async def client(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    (tmp_path / "index.html").write_text("<p>hello</p>")
    async with http_client(gateway_over(await memory_sessions()), web=tmp_path if request.param else None) as made:
        yield made


both = pytest.mark.parametrize("client", [True, False], indirect=True, ids=["with a page", "without"])


@both
async def test_a_path_that_is_not_there_is_404_by_every_method(client: httpx.AsyncClient) -> None:
    for path in ("/v1/nothing", "/nothing", "/v1/responses/", "/v1/chat", "/v1"):
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
            answer = await client.request(method, path)
            assert answer.status_code == 404 and "allow" not in answer.headers, (method, path)
            assert method == "HEAD" or answer.json()["error"]["code"] == "not_found"


WRONG_METHODS = (
    ("GET", "/v1/responses", "POST"),
    ("HEAD", "/v1/responses", "POST"),
    ("PUT", "/v1/conversations/c", "DELETE, GET, HEAD, POST"),
    ("POST", "/v1/sessions/s", "DELETE, GET, HEAD, PATCH"),
    ("PUT", "/v1/sessions", "GET, HEAD"),
    ("DELETE", "/health", "GET, HEAD"),
    ("POST", "/openapi.json", "GET, HEAD"),
)


@both
async def test_a_wrong_method_is_405_and_names_all_that_are_right(client: httpx.AsyncClient) -> None:
    for method, path, allowed in WRONG_METHODS:
        answer = await client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed), (method, path)
        assert method == "HEAD" or answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("client", [True], indirect=True)
async def test_the_page_has_get_and_head(client: httpx.AsyncClient) -> None:
    assert (await client.head("/")).status_code == 200
    answer = await client.post("/index.html")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


@both
async def test_head_is_get_without_its_body(client: httpx.AsyncClient) -> None:
    for path in ("/health", "/healthz", "/readyz", "/v1/sessions", "/openapi.json"):
        got, head = await client.get(path), await client.head(path)
        assert got.status_code == head.status_code == 200 and head.content == b"" and got.content, path
        assert head.headers.get("content-type") == got.headers["content-type"]


@both
async def test_head_of_a_stream_without_end_ends(client: httpx.AsyncClient) -> None:
    answer = await client.head("/v1/sessions/s/events")
    assert answer.status_code in (200, 404) and answer.content == b""


async def test_a_silent_stream_says_that_it_lives() -> None:
    speak = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"a"
        await speak.wait()
        yield b"b"

    seen = []
    async for chunk in sse.with_keepalive(chunks(), 0.001):
        seen.append(chunk)
        if chunk.startswith(b":"):
            speak.set()
    assert seen[0] == b"a" and seen[-1] == b"b" and set(seen[1:-1]) == {b": still here\n\n"}


class Loop:
    """A loop's timers under a hand."""

    def __init__(self) -> None:
        self.now = 50.0
        self.timers: list[tuple[float, Callable[[], None], list[bool]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        entry = (when, callback, [False])
        self.timers.append(entry)

        class Handle:
            def cancel(self) -> None:
                entry[2][0] = True

        return Handle()

    def pending(self) -> list[tuple[float, Callable[[], None], list[bool]]]:
        return [timer for timer in self.timers if not timer[2][0]]

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            due = sorted((timer for timer in self.pending() if timer[0] <= until), key=lambda timer: timer[0])
            if not due:
                break
            when, callback, cancelled = due[0]
            cancelled[0] = True
            self.now = max(self.now, when)
            callback()
        self.now = until


class Member:
    def __init__(self, loop: Loop, at: float) -> None:
        self.slot = 0
        self.at = at
        self.loop = loop
        self.elapsed_at: list[float] = []

    def due(self) -> float:
        return self.at

    def elapsed(self, now: float) -> None:
        self.elapsed_at.append(now)


def test_a_member_that_was_taken_out_is_left_alone() -> None:
    loop = Loop()
    wheel = TimerWheel(loop)  # type: ignore[arg-type]
    gone, closed = Member(loop, 51.0), Member(loop, 52.0)
    wheel.put(gone)
    wheel.put(closed)
    wheel.take(gone)
    held = weakref.ref(gone)
    del gone
    assert held() is None, "it is not held until its time would have come"
    loop.advance(1.5)
    wheel.close()
    loop.advance(5)
    assert closed.elapsed_at == []
    assert loop.pending() == []


def test_one_that_another_of_its_slot_takes_out_is_left_alone() -> None:
    loop = Loop()
    wheel = TimerWheel(loop)  # type: ignore[arg-type]
    first, second = Member(loop, 51.0), Member(loop, 51.0)
    first.elapsed = lambda now: wheel.take(second)  # type: ignore[method-assign]
    wheel.put(first)
    wheel.put(second)
    loop.advance(2)
    assert second.elapsed_at == [] and loop.pending() == []


@given(st.integers(0, 2**32))
def test_everybody_is_called_when_due_at_most_one_slot_late(seed: int) -> None:
    rng = random.Random(seed)
    loop = Loop()
    wheel = TimerWheel(loop)  # type: ignore[arg-type]
    members = [Member(loop, loop.now + rng.uniform(0, 3)) for _ in range(20)]
    for member in members:
        wheel.put(member)
    for _ in range(30):
        loop.advance(rng.uniform(0, 0.3))
        assert len(loop.pending()) <= 1
        mover = rng.choice(members)
        if not mover.elapsed_at:
            mover.at = max(loop.now, mover.at + rng.uniform(-0.5, 1))
            wheel.put(mover)
    loop.advance(100)
    for member in members:
        (elapsed_at,) = member.elapsed_at
        assert member.at <= elapsed_at <= member.at + 2 * SLOT_S
