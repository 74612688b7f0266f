"""Requests to this machine go straight, whatever proxy the environment names; an error elsewhere names the proxy."""

from __future__ import annotations

import asyncio
import os
import urllib.request
from collections.abc import AsyncIterator

import httpx
import pytest

from transport.auth.direct_fetch import fetch_direct, open_direct
from transport.proxies import spare_loopback

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
