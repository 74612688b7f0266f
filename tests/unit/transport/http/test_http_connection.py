"""The limits of an HTTP connection before anybody is known: sizes and times."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from uvicorn.server import ServerState

from sessions.model.types import Principal, TenantId, UnixMs
from tests.support.doors.transport import gateway_over, memory_sessions
from transport.auth.authenticator import Authenticator, key_digest
from transport.http import http_connection
from transport.http_api.server import Server


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = Server(gateway_over(await memory_sessions()), host="127.0.0.1", port=0, web=None)
    await server.start()
    yield server.port
    await server.stop()


async def answer(port: int, data: bytes) -> bytes:
    """Everything that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    async with asyncio.timeout(60):
        whole = await reader.read()
    writer.close()
    return whole


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
