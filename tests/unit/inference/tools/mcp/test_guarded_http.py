"""The HTTP transport under MCP sessions: addresses, redirects, bodies that are too long, secrets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import httpx2
import pytest

from inference.tools.mcp.guarded_http import BODY_BYTES_MAX, GuardedTransport
from sessions.name_lookup import NameLookup
from sessions.public_addresses import AddressRules
from tests.support.doors.tool_service import ToolService, reply

LOOPBACK = AddressRules(["127.0.0.0/8"])


async def secrets() -> Mapping[str, str]:
    return {"authorization": "Bearer first"}


@pytest.fixture
async def service() -> AsyncIterator[ToolService]:
    async with ToolService() as made:
        yield made


def client(rules: AddressRules = LOOPBACK, *addresses: str) -> httpx2.AsyncClient:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses or (host,)

    return httpx2.AsyncClient(transport=GuardedTransport(lambda: rules, secrets, resolve=resolve), trust_env=False)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "fd00:ec2::254", "::ffff:10.0.0.1"]
)
async def test_a_name_that_leads_inside_is_not_connected_to(address: str) -> None:
    async with client(AddressRules(), address) as http:
        with pytest.raises(httpx2.ConnectError, match="not permitted"):
            await http.post("https://mcp.example.com/", json={})


async def test_a_redirect_has_no_place_to_lead_to(service: ToolService) -> None:
    service.answer = lambda asked: reply({}, 307, headers=f"location: {service.url}/elsewhere\r\n")
    async with client() as http:
        answer = await http.post(service.url, json={}, follow_redirects=True)
    assert answer.status_code == 307 and "location" not in answer.headers and len(service.asked) == 1


async def test_a_body_that_is_too_long_is_broken_off(service: ToolService) -> None:
    service.answer = lambda asked: reply("x" * (BODY_BYTES_MAX + 10))
    async with client() as http:
        with pytest.raises(httpx2.ReadError, match="more than"):
            await http.post(service.url, json={})


async def test_secrets_that_are_not_there_are_no_request(service: ToolService) -> None:
    async def nothing() -> Mapping[str, str]:
        raise OSError("no such file: /run/secret")

    async with httpx2.AsyncClient(
        transport=GuardedTransport(lambda: LOOPBACK, nothing, resolve=NameLookup().addresses), trust_env=False
    ) as http:
        with pytest.raises(httpx2.ConnectError, match="not set up"):
            async with asyncio.timeout(60):
                await http.post(service.url, json={})
    assert not service.asked
