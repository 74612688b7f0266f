"""A request whose body breaks off, or is no good, is freed at once: nothing of it waits for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import gzip
import socket
import struct
from collections.abc import AsyncIterator, Iterator

import pytest
from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tests.support.doors.transport import gateway_over, memory_sessions
from transport.http.http_connection import HttpConnection
from transport.http_api.server import Server

TEXT = b'{"model": "m", "messages": "' + b"a" * 100_000 + b'"}'
CUT = gzip.compress(TEXT)[:-9]
FORM = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' + TEXT
GZIP, CHUNKED = b"content-encoding: gzip", b"transfer-encoding: chunked"
CHAT, RESPONSES, FILES = b"/v1/chat/completions", b"/v1/responses", b"/v1/files"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = Server(gateway_over(await memory_sessions()), host="127.0.0.1", port=0, web=None)
    await server.start()
    yield server.port
    await server.stop()


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def freed() -> None:
    """Waits until nothing is left of any request."""
    kinds = (Request, RequestResponseCycle, HttpConnection)
    async with asyncio.timeout(60):
        while any(issubclass(type(each), kinds) for each in gc.get_objects()):  # noqa: ASYNC110  # no event says it
            await asyncio.sleep(0)


def head(path: bytes, length: int, *fields: bytes) -> bytes:
    kind = b"multipart/form-data; boundary=x" if path == FILES else b"application/json"
    lines = (b"POST %s HTTP/1.1" % path, b"host: localhost", b"content-type: " + kind, *fields)
    framing = () if CHUNKED in fields else (b"content-length: %d" % length,)
    return b"\r\n".join((*lines, *framing, b"\r\n"))


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (CUT, [GZIP]),
        (b"{}", [GZIP]),
        (gzip.compress(bytes(5_000_000)), [GZIP]),
        (b"%x\r\n" % 5_000_000 + bytes(5_000_000), [CHUNKED]),
        (b"{" * 1000, []),
        (TEXT[:-1], []),
        (b'{"model": "m", "messages": ' + b"[" * 100 + b"]" * 100 + b"}", []),
    ],
    ids=["cut gzip", "no gzip", "bomb", "too large", "no JSON", "cut JSON", "deep"],
)
@pytest.mark.usefixtures("no_collector")
async def test_a_body_that_is_refused_is_freed(port: int, path: bytes, body: bytes, fields: list[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(path, len(body), b"connection: close", *fields) + body)
    async with asyncio.timeout(60):
        assert (await reader.readline()).startswith(b"HTTP/1.1 4")
    writer.transport.abort()
    await freed()


@pytest.mark.parametrize("path", [b"/" + b"a" * 30_000, b"/nothing.js", b"/.hidden", b"/v1/nothing", b"/v1/sessions/s"])
@pytest.mark.usefixtures("no_collector")
async def test_a_request_for_nothing_is_freed(path: bytes) -> None:
    """Paths of 30 kB that no file has: 1,400 of them held 220 MB."""
    server = Server(gateway_over(await memory_sessions()), host="127.0.0.1", port=0)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % path)
    async with asyncio.timeout(60):
        assert (await reader.readline()).startswith(b"HTTP/1.1 404")
    writer.transport.abort()
    await freed()
    await server.stop()


@pytest.mark.parametrize(("path", "part"), [(CHAT, TEXT), (RESPONSES, TEXT), (FILES, FORM)])
@pytest.mark.parametrize("fields", [[], [GZIP]], ids=["plain", "gzip"])
@pytest.mark.usefixtures("no_collector")
async def test_a_body_that_breaks_off_is_freed(port: int, path: bytes, part: bytes, fields: list[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(path, 4_000_000, b"expect: 100-continue", *fields))
    async with asyncio.timeout(60):
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")  # it is being read
        writer.write(CUT if fields else part)
        await writer.drain()
    writer.close()
    await freed()


@pytest.mark.usefixtures("no_collector")
async def test_a_connection_that_is_reset_behind_its_answer_is_freed(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /%s HTTP/1.1\r\nhost: localhost\r\n\r\n" % (b"a" * 30_000))
    async with asyncio.timeout(60):
        assert (await reader.readline()).startswith(b"HTTP/1.1 404")
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    await freed()
