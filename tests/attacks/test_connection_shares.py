"""Attacks by holding connections: one address, or one key, takes its share and is refused; others come in all the same.

Before, 1,024 heads that never ended, from one address, took every plain connection of the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from sessions.model.types import Principal, TenantId
from tests.support.doors.assembly import Assembly, assembled, wall_ms
from transport.auth.auth_throttle import AuthThrottle, AuthThrottleLimits
from transport.auth.authenticator import Authenticator, key_digest
from transport.auth.client_addresses import TrustedProxies
from transport.auth.connection_shares import ShareLimits
from transport.auth.origins import OriginPolicy
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.server import GrpcLimits, GrpcServer
from transport.grpc_api.sessile_pb2_grpc import SessionsStub
from transport.http_api.server import ServerLimits

KEYS = {
    key_digest(name): Principal(tenant=TenantId("acme"), key_id=name, role="service") for name in ("key-a", "key-b")
}
SHARES = ShareLimits(plain_per_address=6, unauthenticated_per_address=4, per_principal=3)
ARRIVAL_TURNS = 20  # of the loop: what was sent is read within a few
HALF = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"


@asynccontextmanager
async def a_server(
    *, proxies: tuple[str, ...] = (), keyed: bool = True, failures: int = AuthThrottleLimits().failures
) -> AsyncIterator[Assembly]:
    clock = asyncio.get_running_loop().time
    origins = OriginPolicy(proxies=TrustedProxies(proxies))
    throttle = AuthThrottle(clock=clock, limits=AuthThrottleLimits(failures=failures, refill_s=10**6))
    access = Authenticator(KEYS if keyed else {}, clock=clock, now_ms=wall_ms, origins=origins, throttle=throttle)
    async with assembled(admit=lambda _: (access, None), limits=ServerLimits(shares=SHARES)) as assembly:
        yield assembly


async def opened(server: Assembly, data: bytes, *, source: str = "127.0.0.1") -> tuple[str, asyncio.StreamWriter]:
    """The status that a connection with these bytes gets, "" where the server has taken it in and waits."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.server.port, local_addr=(source, 0))
    writer.write(data)
    line = asyncio.create_task(reader.readline())
    if not data.endswith(b"\r\n\r\n"):
        # Connections are taken in in their order: where a later one has its answer, a refusal of this one is there.
        later, out = await asyncio.open_connection("127.0.0.1", server.server.port, local_addr=("127.0.0.9", 0))
        out.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await later.read()
        out.close()
        for _ in range(ARRIVAL_TURNS):
            await asyncio.sleep(0)
        if not line.done():
            line.cancel()
            return "", writer
    return (await line).decode().split()[1], writer


def models(key: str = "", **headers: str) -> bytes:
    if key:
        headers["Authorization"] = f"Bearer {key}"
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode()


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("head", [b"", HALF])
async def test_half_open_heads_of_one_address_keep_nobody_else_out(head: bytes, keyed: bool) -> None:
    async with a_server(keyed=keyed) as server, AsyncExitStack() as stack:
        statuses = []
        for _ in range(8):
            status, writer = await opened(server, head)
            stack.callback(writer.close)
            statuses.append(status)
        assert statuses == [""] * 4 + ["503"] * 4
        status, writer = await opened(server, models("key-a"), source="127.0.0.2")
        stack.callback(writer.close)
        assert status == "200"


async def test_who_has_shown_a_key_leaves_room_at_its_address() -> None:
    async with a_server() as server, AsyncExitStack() as stack:
        for name, status in (("key-a", "200"), ("key-a", "200"), ("key-b", "200"), ("key-a", "200"), ("key-a", "429")):
            got, writer = await opened(server, models(name))
            stack.callback(writer.close)
            assert got == status
        got, writer = await opened(server, HALF)
        stack.callback(writer.close)
        assert got == ""  # the sixth, and the second without a key that counts
        got, writer = await opened(server, models("key-b"))
        stack.callback(writer.close)
        assert got == "503"  # all plain connections of the address


async def test_places_are_given_back() -> None:
    async with a_server() as server:
        for data in (HALF, models("key-a"), models("wrong"), models()):
            for _ in range(10):
                _, writer = await opened(server, data[: len(data)] if data is not HALF else b"x")
                writer.close()
                await writer.wait_closed()
        async with httpx.AsyncClient(base_url=server.server.url, timeout=60) as http, asyncio.timeout(60):
            while (await http.get("/v1/models", headers={"authorization": "Bearer key-a"})).status_code != 200:
                pass


async def test_websockets_count_before_hello_and_by_key_after_it() -> None:
    async with a_server() as server, AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(connect(server.ws))
        with pytest.raises(InvalidStatus) as full:
            await connect(server.ws)
        assert full.value.response.status_code == 503
        header = {"Authorization": "Bearer key-a"}
        local = ("127.0.0.2", 0)
        for _ in range(3):
            await stack.enter_async_context(connect(server.ws, additional_headers=header, local_addr=local))
        with pytest.raises(InvalidStatus) as refused:
            await connect(server.ws, additional_headers=header, local_addr=local)
        assert refused.value.response.status_code == 429
        async with connect(server.ws, local_addr=local) as socket:
            await socket.send('{"type":"hello","auth":"key-a"}')
            with pytest.raises(ConnectionClosedError):
                while "rate_limited" in str(await socket.recv()):
                    pass
        other = {"Authorization": "Bearer key-b", "X-Sessile-User": "ana"}
        async with connect(server.ws, additional_headers=other, local_addr=local) as socket:
            await socket.send('{"type":"hello"}')
            assert "ready" in str(await socket.recv())


async def test_names_of_users_are_the_same_key() -> None:
    async with a_server() as server, AsyncExitStack() as stack:
        for number in range(3):
            headers = {"Authorization": "Bearer key-a", "X-Sessile-User": f"user {number}"}
            await stack.enter_async_context(connect(server.ws, additional_headers=headers))
        with pytest.raises(InvalidStatus) as refused:
            await connect(server.ws, additional_headers={"Authorization": "Bearer key-a", "X-Sessile-User": "one more"})
        assert refused.value.response.status_code == 429


# -- gRPC --------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def a_grpc_door(**limits: Any) -> AsyncIterator[tuple[Assembly, str]]:
    """How often an address may be wrong is another test's."""
    async with a_server(failures=10**9) as assembly:
        door = GrpcServer(assembly.gateway, host="127.0.0.1", port=0, limits=GrpcLimits(shares=SHARES, **limits))
        assert await door.start()
        try:
            yield assembly, door.address
        finally:
            await door.stop()


async def conversation(stack: AsyncExitStack, address: str, key: str | None, session: str) -> Any:
    """A stream that is open, on a connection of its own; the first thing that it says, or why it ended."""
    channel = grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))
    await stack.enter_async_context(channel)
    metadata = () if key is None else (("authorization", f"Bearer {key}"),)
    call = SessionsStub(channel).Converse(metadata=metadata)
    if key is not None:
        await call.write(pb.ConverseRequest(open=pb.Open(session=session)))
    try:
        first = await call.read()
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code() if first is grpc.aio.EOF else first


async def test_streams_of_grpc_count_by_key() -> None:
    async with a_grpc_door() as (server, address), AsyncExitStack() as stack:
        headers = {"authorization": "Bearer key-a"}
        async with httpx.AsyncClient(base_url=server.server.url, headers=headers, timeout=60) as http:
            session = (await http.post("/v1/conversations", json={})).json()["id"]
        for _ in range(3):
            assert (await conversation(stack, address, "key-a", session)).HasField("resumed")
        refused = await conversation(stack, address, "key-a", session)
        assert refused is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await conversation(stack, address, "key-b", session)).HasField("resumed")


async def test_calls_of_grpc_that_show_no_key_have_a_share_and_it_is_given_back() -> None:
    """Each is let finish its first message for a second: ten thousand of them were all calls of the server."""
    async with a_grpc_door() as (_, address), AsyncExitStack() as stack:
        waiting: list[asyncio.Task[Any]] = []
        over = grpc.StatusCode.UNAUTHENTICATED
        async with asyncio.timeout(60), grpc.aio.insecure_channel(address) as channel:
            while over is grpc.StatusCode.UNAUTHENTICATED:  # until all four have their place
                if all(task.done() for task in waiting):  # at first; later: on a busy machine they were let go before
                    waiting = [asyncio.create_task(conversation(stack, address, None, "x")) for _ in range(4)]
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await SessionsStub(channel).Get(pb.GetRequest(session="x"))
                over = refused.value.code()
        assert over is grpc.StatusCode.UNAVAILABLE
        assert "connections from this address" in str(refused.value.details())
        assert set(await asyncio.gather(*waiting)) == {grpc.StatusCode.UNAUTHENTICATED}
        for key in ("key-a",) * 10:
            missing = await conversation(stack, address, key, "none")
            assert missing is grpc.StatusCode.NOT_FOUND


async def test_connections_to_grpc_have_a_bound() -> None:
    async with a_grpc_door(connections_max=3) as (_, address):
        host, _, port = address.rpartition(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(6)]
        ended = [asyncio.create_task(reader.read()) for reader, _ in opened]
        done: set[Any] = set()
        async with asyncio.timeout(60):
            while len(done) < 3:
                done, _ = await asyncio.wait(ended, timeout=0.05)
        for task in ended:
            task.cancel()
        for _, writer in opened:
            writer.close()


# -- proxies -----------------------------------------------------------------------------------------------------------


async def wrong_keys(server: Assembly, number: int, forwarded: str) -> list[int]:
    headers = {"authorization": "Bearer wrong", "x-forwarded-for": forwarded}
    async with httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        return [(await http.get("/v1/models", headers=headers)).status_code for _ in range(number)]


async def test_what_a_stranger_says_of_its_address_is_not_believed() -> None:
    async with a_server() as server:
        statuses = []
        for number in range(22):
            statuses += await wrong_keys(server, 1, f"192.0.2.{number}")
        assert statuses[-1] == 429


async def test_a_trusted_proxy_says_who_was_wrong() -> None:
    async with a_server(proxies=("127.0.0.1", "10.0.0.0/8")) as server:
        assert (await wrong_keys(server, 22, "203.0.113.7, 192.0.2.1, 10.1.2.3"))[-1] == 429
        assert (await wrong_keys(server, 1, "203.0.113.7, 192.0.2.1:4711"))[-1] == 429  # the same, what it claims aside
        assert (await wrong_keys(server, 1, "192.0.2.1, 198.51.100.9"))[-1] == 401
        async with AsyncExitStack() as stack:  # the proxy itself has no share
            for _ in range(8):
                status, writer = await opened(server, HALF)
                stack.callback(writer.close)
                assert status == ""
            one, two = ({"X-Forwarded-For": f"198.51.100.{number}"} for number in (1, 2))
            for _ in range(4):
                await stack.enter_async_context(connect(server.ws, additional_headers=one))
            with pytest.raises(InvalidStatus):
                await connect(server.ws, additional_headers=one)
            await stack.enter_async_context(connect(server.ws, additional_headers=two))
