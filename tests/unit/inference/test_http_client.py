"""The HTTP client and the stream reader, against servers that answer in every inconvenient way."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
import uvloop

from inference import http_client
from inference.http_client import HttpClient, _Exchange
from sessions.model.errors import Unavailable
from tests.support.engines.llama_server import answering, chunked, event, serving
from tests.support.garbage import no_cycles

# -- where to ----------------------------------------------------------------------------------------------


async def _head_seen(http: HttpClient, path: str = "", port: int = 0) -> bytes:
    """What a server on that path, or that port of ::1, reads of a request of this client."""
    heads: list[bytes] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    if path:
        server = await asyncio.start_unix_server(connected, path)
    else:
        server = await asyncio.start_server(connected, "::1", port)
    async with server:
        assert await http.call("GET", "/x") == (200, b"ok")
    return heads[0]


async def test_a_unix_socket_is_spoken_to_as_localhost(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    assert b"\r\nhost: localhost:80\r\n" in await _head_seen(HttpClient.unix(path), path=path)
    with pytest.raises(Unavailable):
        await HttpClient.unix(str(tmp_path / "none.sock")).call("GET", "/x")


def full(path: str) -> tuple[socket.socket, list[socket.socket]]:
    """A server on that path that accepts nothing, with as many connections before it as the system holds."""
    listener = socket.socket(socket.AF_UNIX)
    waiting: list[socket.socket] = []
    listener.bind(path)
    listener.listen(0)
    while True:
        one = socket.socket(socket.AF_UNIX)
        one.setblocking(False)
        try:
            one.connect(path)
        except BlockingIOError:
            one.close()
            return listener, waiting
        waiting.append(one)


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_server_that_is_slow_to_accept_is_waited_for(loop_factory: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")

    async def talk() -> None:
        listener, waiting = full(path)
        call = asyncio.create_task(HttpClient.unix(path).call("GET", "/x"))
        await asyncio.sleep(0)  # it has looked and found no room
        assert not call.done()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if await reader.read(100):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            writer.close()

        for one in waiting:
            one.close()
        async with await asyncio.start_unix_server(connected, sock=listener):
            assert await call == (200, b"ok")

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(talk())


def test_a_server_that_never_accepts_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "_CONNECT_TRIES", 2)
    monkeypatch.setattr(http_client, "_CONNECT_RETRY_S", 0)
    listener, waiting = full(str(tmp_path / "s.sock"))
    with pytest.raises(Unavailable):
        asyncio.run(HttpClient.unix(str(tmp_path / "s.sock")).call("GET", "/x"))
    for each in (listener, *waiting):
        each.close()


# -- short answers -------------------------------------------------------------------------------------


async def test_closing_a_stream_hangs_up_at_once() -> None:
    async def handler(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        body = event(content="x")
        writer.write(b"%x\r\n%s\r\n" % (len(body), body))
        await hung_up.wait()

    hung_up = asyncio.Event()
    async with serving(handler) as (http, readers):
        status, _, stream = await http.stream("/completion", b"{}")
        assert status == 200 and await stream.next() == event(content="x").strip()
        stream.close()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await readers[0].readexactly(1)
        with pytest.raises(Unavailable):
            await stream.next()
        hung_up.set()


@pytest.mark.parametrize("status", [b"200 OK", b"500 Oh"])
async def test_an_answer_without_an_end_is_given_up(status: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "_BODY_MAX", 1 << 16)
    async with serving(answering(b"HTTP/1.1 " + status + b"\r\n\r\n" + b"x" * (1 << 20))) as (http, _):
        with pytest.raises(Unavailable, match="more than"):
            await http.stream("/completion", b"{}")
        with pytest.raises(Unavailable, match="more than"):
            await http.call("GET", "/x")


@pytest.mark.parametrize("head", [b"X: y\r\n" * 100_000, b"X: " + b"y" * 600_000])
async def test_headers_without_an_end_are_given_up(head: bytes) -> None:
    async with serving(answering(b"HTTP/1.1 200 OK\r\n" + head)) as (http, _):
        with pytest.raises(Unavailable, match="more than"):
            await http.call("GET", "/x")


async def test_an_exchange_that_is_over_is_free_at_once() -> None:
    async with serving(answering(chunked(event(content="a"), event(content="b", stop=True)))) as (client, _):
        with no_cycles(_Exchange):
            status, _, events = await client.stream("/completion", b"{}")
            assert status == 200
            while await events.next() is not None:
                pass
            events.close()
            del events
            await asyncio.get_running_loop().create_task(asyncio.sleep(0))  # the transport has said that it is closed
