"""The body of a request is never answered as a request: upgrades that are not taken, with a body behind their head."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from uvicorn.server import ServerState

from sessions.metrics import Metrics
from sessions.model.types import Principal, TenantId, UnixMs
from tests.support.doors.raw_http import read_answer
from tests.support.doors.transport import gateway_over, memory_sessions
from transport.auth.authenticator import Authenticator, key_digest
from transport.http.http_connection import listen
from transport.http_api.server import Server
from transport.ops.metrics_server import MetricsServer
from transport.ops.prometheus import MetricsExposition

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n"
BODIES = {
    b"content-length: %d\r\n" % len(SMUGGLED): SMUGGLED,
    b"transfer-encoding: chunked\r\n": b"%x\r\n%s\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED),
}
UPGRADES = (b"foo", b"h2c", b"websocket, foo", b"TLS/1.2, websocket")
LAST = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


@asynccontextmanager
async def door(name: str) -> AsyncIterator[int]:
    if name == "metrics":
        exposition = MetricsExposition(Metrics(), version="1", role="test")
        metrics = MetricsServer(exposition, host="127.0.0.1", port=0)
        await metrics.start()
        yield int(metrics.url.rpartition(":")[2])
        await metrics.stop()
        return
    keys = {key_digest("good"): Principal(tenant=TenantId("acme"), key_id="k")}
    access = Authenticator(keys, clock=lambda: 0.0, now_ms=lambda: UnixMs(1)) if name == "keyed" else None
    sessions = await memory_sessions()
    gateway = gateway_over(sessions) if access is None else gateway_over(sessions, access)
    server = Server(gateway, host="127.0.0.1", port=0, web=None)
    await server.start()
    yield server.port
    await server.stop()


async def exchange(port: int, head: bytes, behind: bytes) -> tuple[bytes, bytes]:
    """The answer to a head whose body has not come, and what is answered to the rest, until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(60):
        writer.write(head)
        first = await read_answer(reader)
        writer.write(behind)
        rest = await reader.read()
    writer.close()
    return first, rest


@pytest.mark.parametrize("name", ["open", "keyed", "metrics"])
@pytest.mark.parametrize("framing", BODIES)
@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("authorization", [b"", b"authorization: Bearer good\r\n", b"authorization: Bearer bad\r\n"])
async def test_the_body_of_an_upgrade_that_is_not_taken_is_a_body(
    name: str, framing: bytes, upgrade: bytes, authorization: bytes
) -> None:
    path = b"/v1/me" if name == "keyed" else b"/healthz"
    head = b"GET %s HTTP/1.1\r\nhost: localhost\r\nconnection: keep-alive, upgrade\r\nupgrade: %s\r\n%s%s\r\n"
    async with door(name) as port:
        first, rest = await exchange(port, head % (path, upgrade, authorization, framing), BODIES[framing] + LAST)
    assert b"smuggled" not in rest
    if b"connection: close" in first:
        assert rest == b""
    else:
        assert rest.startswith(b"HTTP/1.1 200 ")
        assert rest.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("name", ["open", "keyed", "metrics"])
@pytest.mark.parametrize(
    "line",
    [b"POST /v1/ws HTTP/1.1", b"GET /v1/nothing HTTP/1.1", b"GET /v1/responses HTTP/1.1", b"CONNECT a:1 HTTP/1.1"],
)
async def test_a_handshake_that_is_refused_ends_the_connection_or_has_its_body_read(name: str, line: bytes) -> None:
    head = b"%s HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\ncontent-length: %d\r\n\r\n"
    async with door(name) as port:
        _, rest = await exchange(port, head % (line, len(SMUGGLED)), SMUGGLED + LAST)
    assert b"smuggled" not in rest
    assert rest.count(b"HTTP/1.1 ") <= 1


@pytest.mark.parametrize("later", [False, True])
async def test_a_request_that_would_rather_speak_http_2_is_answered_with_its_body_read(later: bool) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n%s%s\r\n"
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"
    body = b'{"model": "m", "messages": []}'
    length = b"content-length: %d\r\n" % len(body)
    async with door("open") as port:
        answers = []
        for extra in (b"", offer):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(60):
                if later:  # a first request's answer says that the connection was read up to here
                    writer.write(LAST.replace(b"connection: close\r\n", b"") + head % (length, extra))
                    await read_answer(reader)
                    writer.write(body)
                else:
                    writer.write(head % (length, extra) + body)
                answers.append(await read_answer(reader))
            writer.close()
    plain, offered = (each.partition(b"\r\n\r\n")[2] for each in answers)
    assert b"messages" in plain
    assert offered == plain


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_only_http_1_1_is_answered_in_chunks(version: bytes) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one,", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    listener = await listen(app, ServerState(), ("127.0.0.1", 0))
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    async with asyncio.timeout(60):
        writer.write(b"GET / HTTP/%s\r\nhost: localhost\r\nconnection: close\r\n\r\n" % version)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    listener.close()
    assert (b"transfer-encoding: chunked" in head) == (version == b"1.1")
    assert (body == b"one,two") == (version == b"1.0")
