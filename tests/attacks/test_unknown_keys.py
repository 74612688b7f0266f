"""Attacks by who has no key: nothing of their requests is parsed, at no door, and what they send counts as wrong keys.

Before, bodies were read and validated first: one request without a key held the loop for a tenth of a second and more.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError

from sessions.model.types import Principal, TenantId
from tests.support.authorisation.world import World, a_world
from tests.support.doors.assembly import Assembly, assembled, wall_ms
from tests.support.doors.websocket_wire import Wire, shake_hands
from transport.auth.auth_throttle import AuthThrottle, AuthThrottleLimits
from transport.auth.authenticator import Authenticator, key_digest
from transport.grpc_api import sessile_pb2 as pb
from transport.http_api import strict_json
from transport.protocol import connection as protocol_connection
from transport.websocket import websocket

KEY = "sk-of-acme"
PRINCIPAL = Principal(tenant=TenantId("acme"), key_id="filed", role="service")
BAD_JSON = b'{"model": ['
METHODS = [(each.name, each) for each in pb.DESCRIPTOR.services_by_name["Sessions"].methods]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


@pytest.fixture
async def keyed() -> AsyncIterator[Assembly]:
    """Nothing is forgiven while a test runs, however slow the machine is."""
    clock, throttle_limits = asyncio.get_running_loop().time, AuthThrottleLimits(refill_s=10**6)
    throttle = AuthThrottle(clock=clock, limits=throttle_limits)
    access = Authenticator({key_digest(KEY): PRINCIPAL}, clock=clock, now_ms=wall_ms, throttle=throttle)
    async with assembled(admit=lambda _: (access, None)) as assembly:
        yield assembly


@pytest.fixture
def nothing_is_parsed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Fails the test that uses it where any body of HTTP or frame of a WebSocket is parsed."""
    parsed: list[bytes] = []

    def parse(data: bytes, *_: Any) -> Any:
        parsed.append(data)
        return {}

    monkeypatch.setattr(strict_json, "parsed", parse)
    monkeypatch.setattr(protocol_connection, "decode", parse)
    yield parsed
    assert parsed == []


async def doors(world: World) -> list[tuple[str, str]]:
    """Every route that takes a body, and some that do not exist."""
    described = (await world.http.get("/openapi.json")).json()["paths"]
    known = [
        (method.upper(), path.replace("{", "").replace("}", ""))
        for path, methods in described.items()
        for method in methods
        if method in ("post", "patch", "put", "delete")
    ]
    assert len(known) >= 20
    return [*known, ("POST", "/v1/nothing"), ("POST", "/"), ("PUT", "/v1/chat/completions"), ("POST", "/docs")]


@pytest.mark.parametrize("authorization", [None, "Bearer sk-wrong", "Basic YTpi", "Bearer eyJhbGciOiJub25lIn0.e30."])
async def test_no_body_is_parsed_at_any_route(
    world: World, authorization: str | None, nothing_is_parsed: list[bytes]
) -> None:
    headers = {"content-type": "application/json"} | ({"authorization": authorization} if authorization else {})
    for method, path in await doors(world):
        answer = await world.http.request(method, path, headers=headers, content=BAD_JSON)
        assert (method, path, answer.status_code) == (method, path, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/v1/models", "/v1/nothing", "/v1", "/metrics"):
        assert (await world.http.get(path, headers=headers)).status_code == 401
    assert (await world.http.get("/healthz", headers=headers)).status_code == 200
    assert (await world.http.get("/v1/ws", headers=headers)).status_code == 426
    assert (await world.http.post("/v1/ws", headers=headers)).status_code == 401


async def test_a_request_is_refused_by_its_head(keyed: Assembly) -> None:
    """The answer comes before the body does, and a body that comes all the same is not read to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", keyed.server.port)
    writer.write(b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n")
    async with asyncio.timeout(60):
        assert (await reader.readline()).split()[1] == b"401"
        with pytest.raises(ConnectionError):
            for _ in range(100):
                writer.write(b"x" * 1_000_000)
                await writer.drain()
        writer.close()


@pytest.mark.parametrize("content", [BAD_JSON, b"{}"])
async def test_bodies_without_a_key_count_as_wrong_keys(keyed: Assembly, content: bytes) -> None:
    async with httpx.AsyncClient(base_url=keyed.server.url, timeout=60) as http:
        statuses = [(await http.post("/v1/chat/completions", content=content)).status_code for _ in range(25)]
        assert statuses[:20] == [401] * 20
        assert statuses[-1] == 429
        good = await http.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})
        assert good.status_code == 200
        # A question without a body is none: a page asks so whether it needs a key.
        assert (await http.get("/v1/models")).status_code == 401


@pytest.mark.parametrize(
    "message",
    [
        BAD_JSON,
        b'{"type": "hello"}',
        b'{"type": "hello", "auth": "sk-wrong", "resume": 5}',
        b"[" + b"0," * 20_000 + b"0]",
        b'[{"type": "hello", "auth": "sk-wrong"}, {"type": "nothing"}]',
        msgspec.json.encode({"type": "hello", "auth": "sk-wrong", "device": ["x"] * 10_000}),
    ],
)
async def test_a_first_message_is_looked_at_for_its_key_only(
    keyed: Assembly, message: bytes, nothing_is_parsed: list[bytes]
) -> None:
    codes = []
    for _ in range(22):
        async with connect(keyed.ws, subprotocols=None) as socket:
            await socket.send(message.decode())
            with pytest.raises(ConnectionClosedError) as closed:
                while True:
                    await socket.recv()
            assert closed.value.rcvd is not None
            codes.append((closed.value.rcvd.code, closed.value.rcvd.reason))
    assert codes[0] == (4401, "unauthorized")
    assert codes[-1][1] == "rate_limited"


async def test_a_first_message_without_a_key_is_small(keyed: Assembly) -> None:
    async with connect(keyed.ws) as socket:
        await socket.send(b"x".decode() * (websocket.HELLO_BYTES_MAX + 1))
        with pytest.raises(ConnectionClosedError) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
    async with connect(keyed.ws) as socket:  # and as large as ever behind a good one
        await socket.send('{"type": "hello", "auth": "' + KEY + '"}')
        assert '"ready"' in str(await socket.recv())
        await socket.send('{"type": "session.get", "id": "1", "session": "' + "x" * 200_000 + '"}')
        assert '"error"' in str(await socket.recv())


def whole(wire: Wire, message: bytes) -> None:
    wire.send_frame(0x81, message)


def in_fragments(wire: Wire, message: bytes) -> None:
    wire.send_frame(0x01, message[:9])
    wire.send_frame(0x80, message[9:])


def behind_a_ping(wire: Wire, message: bytes) -> None:
    wire.send_frame(0x89, b"")
    wire.send_frame(0x81, message)


def with_more_behind(wire: Wire, message: bytes) -> None:
    for _ in range(20):
        wire.send_frame(0x81, message)


@pytest.mark.parametrize(
    "head", [{}, {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}, {"X-Forwarded-For": "10.1.2.3"}]
)
@pytest.mark.parametrize("write", [whole, in_fragments, behind_a_ping, with_more_behind])
async def test_however_a_first_message_is_written_its_key_is_looked_at(
    keyed: Assembly, write: Callable[[Wire, bytes], None], head: dict[str, str], nothing_is_parsed: list[bytes]
) -> None:
    """Whether a parser sees it or not, the refusal is the same, and the connection's share is given back."""
    wire = await shake_hands(keyed.server.port, headers=head)
    write(wire, b'{"type": "hello", "auth": "sk-wrong"}')
    assert (await wire.until(type="error"))["error"]["code"] == "unauthorized"
    assert await wire.closed() == (4401, "unauthorized")
    wire.send_frame(0x88, b"")
    async with asyncio.timeout(60):
        assert await wire.reader.read() == b""  # it is closed, and not by a reset
    wire.writer.close()


async def test_a_first_message_that_comes_by_bytes_is_judged_when_it_is_whole(keyed: Assembly) -> None:
    wire = await shake_hands(keyed.server.port)
    good = b'{"type": "hello", "auth": "' + KEY.encode() + b'"}'
    for byte in bytes((0x81, 0x80 | len(good), 0, 0, 0, 0)) + good:
        wire.writer.write(bytes((byte,)))
        await wire.writer.drain()
    await wire.until(type="ready")
    wire.writer.close()


async def test_strangers_take_nobodys_turn_to_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where new connections are paced, those count whose key is good: before, everyone's place was a stranger's."""
    monkeypatch.setattr("transport.connection_rate.BURST_S", 2000.0)
    pace = tmp_path / "limits.toml"
    pace.write_text("connections_per_s = 0.001\n")  # two at once, and none more however long the test takes
    async with assembled(keys={key_digest(KEY): PRINCIPAL}, limits_file=pace) as assembly:
        port = assembly.server.port
        for headers in ({}, {}, {"Authorization": "Bearer sk-wrong"}, {"X-Forwarded-For": "10.1.2.3"}, {}):
            stranger = await shake_hands(port, headers=headers)
            if stranger.handshake.status == 101:
                stranger.send({"type": "hello", "auth": "sk-wrong"})
                assert (await stranger.closed()).code == 4401
            stranger.writer.close()
        by_header, by_hello = (
            await shake_hands(port, headers={"Authorization": f"Bearer {KEY}"}),
            await shake_hands(port),
        )
        await by_header.hello()
        await by_hello.hello(auth=KEY)
        late = await shake_hands(port)  # and where it is their own turn that is taken, they are paced
        late.send({"type": "hello", "auth": KEY})
        error = (await late.until(type="error"))["error"]
        assert error["code"] == "overloaded" and error["retry_after_ms"] >= 1
        assert (await late.closed()).code == 1013
        for wire in (by_header, by_hello, late):
            wire.writer.close()


@pytest.mark.parametrize(("name", "method"), METHODS)
async def test_no_message_of_grpc_is_decoded(world: World, name: str, method: Any) -> None:
    channel: Any = world.channel
    garbage = b"\xff" * 100_000
    path = f"/sessile.v1.Sessions/{name}"
    for metadata, status in (
        ((), "UNAUTHENTICATED"),
        ((("authorization", "Bearer sk-wrong"),), "UNAUTHENTICATED"),
        ((("authorization", f"Bearer {world.credentials['victim']}"),), "INVALID_ARGUMENT"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            if method.client_streaming:
                call = channel.stream_stream(path)(metadata=metadata)
                await call.write(garbage)
                await call.read()
                raise grpc.aio.AioRpcError(
                    await call.code(), await call.initial_metadata(), await call.trailing_metadata()
                )
            if method.server_streaming:
                async for _ in channel.unary_stream(path)(garbage, metadata=metadata):
                    pass
            else:
                await channel.unary_unary(path)(garbage, metadata=metadata)
        assert (name, refused.value.code().name) == (name, status)


@pytest.mark.parametrize("hosts", [(b"127.0.0.1", b"evil.example"), (b"evil.example", b"127.0.0.1"), ()])
@pytest.mark.parametrize("upgrade", [b"", b"Connection: Upgrade\r\nUpgrade: websocket\r\n"])
async def test_a_request_has_one_host(hosts: tuple[bytes, ...], upgrade: bytes) -> None:
    async with assembled() as assembly:
        reader, writer = await asyncio.open_connection("127.0.0.1", assembly.server.port)
        head = b"".join(b"Host: " + host + b"\r\n" for host in hosts)
        writer.write(b"GET /v1/ws HTTP/1.1\r\n" + head + upgrade + b"\r\n")
        async with asyncio.timeout(60):
            assert (await reader.readline()).split()[1] == b"400"
        writer.close()


async def test_a_packed_body_is_unpacked_for_a_key_alone(keyed: Assembly) -> None:
    bomb = gzip.compress(bytes(64 * 1024 * 1024))
    async with httpx.AsyncClient(base_url=keyed.server.url, timeout=60) as http:
        headers = {"content-encoding": "gzip", "content-type": "application/json"}
        assert (await http.post("/v1/responses", headers=headers, content=bomb)).status_code == 401
        headers |= {"authorization": f"Bearer {KEY}"}
        answer = await http.post("/v1/responses", headers=headers, content=bomb)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


@pytest.mark.parametrize("encoding", ["zstd", "br", "deflate, gzip"])
async def test_an_encoded_body_is_refused_with_what_to_do(keyed: Assembly, encoding: str) -> None:
    async with httpx.AsyncClient(base_url=keyed.server.url, timeout=60) as http:
        headers = {"content-encoding": encoding, "content-type": "application/json"}
        nobody = await http.post("/v1/responses", headers=headers, content=b"\x1f\x8b")
        assert nobody.status_code == 401
        headers |= {"authorization": f"Bearer {KEY}"}
        answer = await http.post("/v1/responses", headers=headers, content=b"\x1f\x8b")
        assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_content_encoding")
        assert "without Content-Encoding" in answer.json()["error"]["message"]
        twice = [*(headers | {"content-encoding": "identity"}).items(), ("content-encoding", "gzip")]
        assert (await http.post("/v1/responses", headers=twice, content=b"{")).status_code == 415
        plain = await http.post("/v1/responses", headers=headers | {"content-encoding": "identity"}, content=b"{")
        assert plain.status_code == 400


async def test_two_user_headers_are_refused(keyed: Assembly) -> None:
    """A backend's proxy that adds the header, where it should replace it, let the caller choose."""
    async with httpx.AsyncClient(base_url=keyed.server.url, timeout=60) as http:
        headers = [("authorization", f"Bearer {KEY}"), ("x-sessile-user", "ana"), ("x-sessile-user", "ben")]
        for path in ("/v1/sessions", "/v1/models"):
            answer = await http.get(path, headers=headers)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "user")


async def test_a_body_that_says_that_it_is_too_large_is_not_waited_for(keyed: Assembly) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", keyed.server.port)
    head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 10000000\r\n\r\n".encode())
    async with asyncio.timeout(60):
        assert b" 413 " in await reader.readline()
    writer.close()
