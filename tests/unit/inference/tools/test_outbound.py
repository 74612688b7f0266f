"""Requests of tools: to addresses that were looked at, and no more of the answer than is allowed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from inference.tools.outbound import ToolHttpClient, ToolUnanswered, ToolUnreached
from sessions.public_addresses import AddressRules
from tests.support.doors.tool_service import ToolService, reply

LOOPBACK = AddressRules(["127.0.0.0/8"])


@pytest.fixture
async def service() -> AsyncIterator[ToolService]:
    async with ToolService() as made:
        yield made


@pytest.fixture
async def client() -> AsyncIterator[ToolHttpClient]:
    async with ToolHttpClient() as made:
        yield made


async def send(
    client: ToolHttpClient, url: str, rules: AddressRules = LOOPBACK, timeout_s: float = 60.0
) -> tuple[int, bytes, bool]:
    return await client.send("POST", url, rules, body=b"{}", headers={}, timeout_s=timeout_s, bytes_max=100)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe"]
)
async def test_a_name_that_leads_inside_is_not_asked(address: str) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["93.184.216.34", address]

    async with ToolHttpClient(resolve=resolve) as client:
        with pytest.raises(ToolUnreached, match="not permitted"):
            await send(client, "https://weather.example/", AddressRules())


async def test_what_was_looked_at_is_what_is_connected_to(service: ToolService) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    async with ToolHttpClient(resolve=resolve) as client:
        assert (await send(client, f"{service.url}/x"))[0] == 200
    assert asked == ["127.0.0.1"], "resolved once for a connection"


async def test_a_redirect_is_not_followed_and_a_flood_is_cut(client: ToolHttpClient, service: ToolService) -> None:
    service.answer = lambda asked: reply({}, 302, headers=f"location: {service.url}/y\r\n")
    assert (await send(client, f"{service.url}/x"))[0] == 302 and len(service.asked) == 1
    service.answer = lambda asked: b"HTTP/1.1 200 x\r\n\r\n" + b"a" * 1_000_000
    assert await send(client, f"{service.url}/x") == (200, b"a" * 100, True)


async def test_one_that_lies_hangs_or_is_not_there(client: ToolHttpClient, service: ToolService) -> None:
    service.answer = lambda asked: b"HTTP/1.1 200 x\r\ncontent-length: 50\r\n\r\nshort"
    with pytest.raises(ToolUnanswered):
        await send(client, f"{service.url}/x")
    service.answer = lambda asked: b"nonsense\r\n\r\n"
    with pytest.raises(ToolUnanswered):
        await send(client, f"{service.url}/x")
    service.hold = asyncio.Event()
    with pytest.raises(ToolUnanswered, match="in time"):
        await send(client, f"{service.url}/x", timeout_s=0.2)
    service.hold.set()
    with pytest.raises(ToolUnreached):
        await send(client, "http://127.0.0.1:9/x")
