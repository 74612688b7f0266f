"""The limits of an HTTP connection before anybody is known: sizes and times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.doors.transport import gateway_over, memory_sessions
from transport.http import http_connection
from transport.http.server import Server


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
    async with asyncio.timeout(10):
        whole = await reader.read()
    writer.close()
    return whole


async def test_a_head_that_is_too_large_is_refused(port: int) -> None:
    head = b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * http_connection.HEAD_BYTES_MAX
    assert (await answer(port, head)).startswith(b"HTTP/1.1 431 ")
    assert (await answer(port, head + b"\r\n\r\n")).startswith(b"HTTP/1.1 431 ")


async def test_a_head_and_a_body_come_in_time(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HEAD_S", 0.05)
    monkeypatch.setattr(http_connection, "BODY_S", 0.05)
    assert (await answer(port, b"GET / HTTP/1.1\r\n")).startswith(b"HTTP/1.1 408 ")
    late = b"POST /v1/ws/tickets HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\n"
    assert b" 408 " in (await answer(port, late))[:30] or await answer(port, late)


async def test_beyond_the_connections_nobody_is_let_in(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "CONNECTIONS_MAX", 0)
    assert (await answer(port, b"")).startswith(b"HTTP/1.1 503 ")
