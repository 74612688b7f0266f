"""Pages of other sites over HTTP: what CORS tells a browser, with an allow-list and without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from sessions.model.types import Principal, TenantId
from tests.support.doors.assembly import assembled, wall_ms
from transport.auth.authenticator import Authenticator, key_digest
from transport.auth.origins import OriginPolicy

LISTED = "https://app.example"
KEY = {"authorization": "Bearer k"}


def guarded(*origins: str) -> Authenticator:
    who = Principal(tenant=TenantId("t"), key_id="k")
    clock = asyncio.get_running_loop().time
    return Authenticator({key_digest("k"): who}, clock=clock, now_ms=wall_ms, origins=OriginPolicy(origins))


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    access = guarded(LISTED)
    async with (
        assembled(admit=lambda _: (access, None)) as assembly,
        httpx.AsyncClient(base_url=assembly.server.url, timeout=60) as client,
    ):
        yield client


async def test_a_listed_page_may_ask_and_read(client: httpx.AsyncClient) -> None:
    asking = {
        "origin": LISTED,
        "access-control-request-method": "PATCH",
        "access-control-request-headers": "authorization, content-type, idempotency-key",
    }
    asked = await client.options("/v1/sessions/s", headers=asking)
    assert asked.status_code == 200 and asked.headers["access-control-allow-origin"] == LISTED
    assert "PATCH" in asked.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in asked.headers  # no cookies
    answer = await client.get("/v1/sessions", headers={**KEY, "origin": LISTED})
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == LISTED
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    refused = await client.get("/v1/sessions", headers={"origin": LISTED})
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == LISTED  # it may read why


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://app.example", "https://app.example.evil"])
async def test_another_page_is_refused_and_told_nothing(client: httpx.AsyncClient, origin: str) -> None:
    asked = await client.options("/v1/sessions", headers={"origin": origin, "access-control-request-method": "GET"})
    assert asked.status_code == 400 and "access-control-allow-origin" not in asked.headers
    answer = await client.get("/v1/sessions", headers={**KEY, "origin": origin})
    assert answer.status_code == 403 and "access-control-allow-origin" not in answer.headers
    simple = await client.post("/v1/ws/tickets", headers={**KEY, "origin": origin, "content-type": "text/plain"})
    assert simple.status_code == 403


async def test_without_a_list_no_page_is_told_anything() -> None:
    access = guarded()
    async with (
        assembled(admit=lambda _: (access, None)) as assembly,
        httpx.AsyncClient(base_url=assembly.server.url, timeout=60) as client,
    ):
        asked = await client.options("/v1/sessions", headers={"origin": LISTED, "access-control-request-method": "GET"})
        assert asked.status_code == 405 and "access-control-allow-origin" not in asked.headers
        assert (await client.get("/v1/sessions", headers={**KEY, "origin": LISTED})).status_code == 403


async def test_an_address_that_is_wrong_too_often_is_told_so_over_http(client: httpx.AsyncClient) -> None:
    answers = [await client.get("/v1/sessions", headers={"authorization": f"Bearer wrong-{n}"}) for n in range(25)]
    assert [answer.status_code for answer in answers] == [401] * 20 + [429] * 5
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert (await client.get("/v1/sessions", headers=KEY)).status_code == 200
