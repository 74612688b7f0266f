"""Fetches of one address: what comes back, how much of it, who waits, and which proxy is gone through."""

from __future__ import annotations

import asyncio
import os
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from transport.auth.direct_fetch import DirectAnswer, fetch_direct, open_direct
from transport.proxies import spare_loopback


class Connected:
    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []


@asynccontextmanager
async def a_host(answer: bytes | None) -> AsyncIterator[tuple[urllib.request.Request, Connected]]:
    """Answers all alike; None: nobody."""
    connected = Connected()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.writers.append(writer)
        connected.begun.set()
        await reader.readuntil(b"\r\n\r\n")
        if answer is not None:
            writer.write(answer)
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield urllib.request.Request(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"), connected
    finally:
        for writer in connected.writers:
            writer.close()
        server.close()


@pytest.mark.parametrize(
    ("head", "status"),
    [(b"200 OK", 200), (b"404 Not Found", 404), (b"302 Found\r\nLocation: http://127.0.0.1:1/", 302)],
)
async def test_every_status_is_an_answer_and_no_redirect_is_followed(head: bytes, status: int) -> None:
    async with a_host(b"HTTP/1.1 " + head + b"\r\nContent-Length: 2\r\n\r\nab") as (request, _):
        assert await fetch_direct(request, 5.0, bytes_max=10) == DirectAnswer(status, b"ab")


async def test_of_a_long_answer_one_byte_more_than_it_may_have_is_read() -> None:
    async with a_host(b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 300_000) as (request, _):
        assert len((await fetch_direct(request, 5.0, bytes_max=100)).body) == 101
        assert len((await fetch_direct(request, 5.0, bytes_max=200_000)).body) == 200_001
        assert len((await fetch_direct(request, 5.0, bytes_max=400_000)).body) == 300_000


async def test_the_fetches_that_wait_for_an_address_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.auth.direct_fetch.AT_ONCE", 1)
    monkeypatch.setattr("transport.auth.direct_fetch.WAITING_MAX", 2)
    async with a_host(None) as (request, connected), a_host(b"HTTP/1.1 200 OK\r\n\r\nb") as (other, _):
        under_way = asyncio.create_task(fetch_direct(request, 60.0, bytes_max=10))
        async with asyncio.timeout(60):
            await connected.begun.wait()  # so has its thread
        waiting = [asyncio.create_task(fetch_direct(request, 60.0, bytes_max=10)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(OSError, match="too many"):
            await fetch_direct(request, 60.0, bytes_max=10)
        assert (await fetch_direct(other, 5.0, bytes_max=10)).body == b"b"
        waiting[0].cancel()
        await asyncio.wait([waiting[0]])
        waiting.append(asyncio.create_task(fetch_direct(request, 60.0, bytes_max=10)))
        await asyncio.sleep(0)
        assert not waiting[2].done()  # it has the place of who left
        for task in (under_way, *waiting):
            task.cancel()
        await asyncio.wait([under_way, *waiting])


DEAD = "http://user:secret@127.0.0.1:1"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy", "http_proxy", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", DEAD)
    monkeypatch.setenv("HTTPS_PROXY", DEAD)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_what_is_here_is_asked_straight(port: int, host: str) -> None:
    answer = await fetch_direct(urllib.request.Request(f"http://{host}:{port}/"), 60.0, bytes_max=10)
    assert answer.body == b"ok"


async def test_libraries_spare_this_machine_too(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "intern.example")
    monkeypatch.setenv("no_proxy", "")
    spare_loopback(os.environ)
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "intern.example,localhost,127.0.0.1,::1"
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"http://127.0.0.1:{port}/")).text == "ok"
    spare_loopback(os.environ)
    assert os.environ["NO_PROXY"].count("127.0.0.1") == 1


def test_without_a_proxy_nothing_is_changed() -> None:
    environment = {"PATH": "/bin"}
    spare_loopback(environment)
    assert environment == {"PATH": "/bin"}


def test_an_error_names_the_proxy_and_not_its_password() -> None:
    with pytest.raises(OSError, match=r"through the proxy http://127\.0\.0\.1:1") as failed:
        open_direct(urllib.request.Request("http://sessile.example/v1/me"), 60.0)
    assert "secret" not in str(failed.value)
