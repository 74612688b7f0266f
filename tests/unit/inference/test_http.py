"""The HTTP client against servers that answer in every inconvenient way, and where images are fetched from."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
import uvloop

from inference import http_client
from inference.http_client import HttpClient, _Exchange
from inference.image_fetcher import ImageFetcher
from inference.tools.outbound import ToolAnswer, ToolHttpClient, ToolUnanswered, ToolUnreached
from sessions.model.errors import BadInput, SessileError, Unavailable
from sessions.model.knowledge.images import IMAGE_BYTES_MAX
from sessions.public_addresses import AddressRules
from tests.support.engines.llama_server import answering, chunked, event, serving
from tests.support.garbage import no_cycles

# -- http client
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


@pytest.mark.parametrize("connected", [False, True])
async def test_closing_ends_what_is_under_way(connected: bool) -> None:
    asked = asyncio.Event()

    async def handler(_: bytes, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with serving(handler) as (http, _):
        calls = [asyncio.create_task(http.call("GET", "/x")) for _ in range(3)]
        await (asked.wait() if connected else asyncio.sleep(0))  # else while they connect
        await http.close()
        assert all(isinstance(each, Unavailable) for each in await asyncio.gather(*calls, return_exceptions=True))
        with pytest.raises(Unavailable):
            await http.call("GET", "/x")


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


# -- image fetcher
HOSTS = ("images.example.com", "*.cdn.example.com", "10.1.0.0/16")
URL = "https://images.example.com/a.png"


class Client(ToolHttpClient):
    """Answers with `answer`, and notes what it was to send."""

    def __init__(self, answer: ToolAnswer | Exception) -> None:
        super().__init__()
        self.answer = answer
        self.sent: list[tuple[str, AddressRules]] = []

    async def send(self, method: str, url: str, rules: AddressRules, **options: Any) -> ToolAnswer:
        self.sent.append((url, rules))
        assert method == "GET" and options["body"] is None and options["bytes_max"] == IMAGE_BYTES_MAX
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("url", [URL, "https://IMAGES.example.com.:8443/a", "https://a.b.cdn.example.com/?x=1"])
async def test_named_hosts_are_fetched_from_by_rules_that_know_the_private_networks(url: str) -> None:
    client = Client(ToolAnswer(200, b"image", cut=False))
    async with ImageFetcher(HOSTS, client=client) as fetcher:
        assert await fetcher.fetch(url) == b"image"
    ((sent, rules),) = client.sent
    assert sent == url and rules.permits_all(["10.1.2.3"]) and not rules.permits_all(["10.2.0.1"])
    assert not rules.permits_all(["127.0.0.1"])


@pytest.mark.parametrize(
    "url",
    [
        "http://images.example.com/a.png",
        "https://example.com/a.png",
        "https://cdn.example.com/a.png",
        "https://images.example.com.evil.org/",
        "https://evilimages.example.com/",
        "https://images.example.com@evil.org/",
        "https://10.1.0.1/a.png",
        "https://127.0.0.1/",
        "https://[::1]/",
        "ftp://images.example.com/",
        "file:///etc/passwd",
        "//images.example.com/a",
        "https://images.example.com\\@evil.org/",
        "https://images.example.com/ä",
        "",
    ],
)
async def test_every_other_address_is_refused_before_anything_is_sent(url: str) -> None:
    client = Client(ToolAnswer(200, b"image", cut=False))
    async with ImageFetcher(HOSTS, client=client) as fetcher:
        with pytest.raises(BadInput) as refused:
            await fetcher.fetch(url)
    assert refused.value.code == "image_not_permitted" and not client.sent


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (ToolAnswer(404, b"none", cut=False), "image_unreadable"),
        (ToolAnswer(302, b"", cut=False), "image_unreadable"),
        (ToolAnswer(200, b"x", cut=True), "image_unreadable"),
        (ToolUnreached("its address is not permitted"), "image_unreachable"),
        (ToolUnanswered("it did not answer in time"), "image_unreachable"),
    ],
)
async def test_what_gives_no_image_says_why(answer: ToolAnswer | Exception, code: str) -> None:
    async with ImageFetcher(HOSTS, client=Client(answer)) as fetcher:
        with pytest.raises(SessileError) as refused:
            await fetcher.fetch(URL)
    assert refused.value.code == code


@pytest.mark.parametrize("host", ["https://images.example.com", "10.1.0.0/40", "a b", "*.", "images.example.com/x"])
def test_what_is_no_host_is_refused_at_the_start(host: str) -> None:
    with pytest.raises(BadInput) as refused:
        ImageFetcher((host,))
    assert refused.value.param == "image_hosts"
