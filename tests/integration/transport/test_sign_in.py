"""People sign in with a real provider, are known by a cookie at every door that takes one, stay, and sign out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError
from websockets.typing import Origin

from tests.support.openid.provider import at_provider, sign_in
from tests.support.openid.world import KEY, SignInWorld, a_sign_in_world

REQUEST = {"model": "simulated", "input": "Of the sea.", "max_output_tokens": 5}


@pytest.fixture
async def world() -> AsyncIterator[SignInWorld]:
    async with a_sign_in_world() as made:
        yield made


def cookie_of(http: httpx.AsyncClient, name: str = "sessile-session") -> str:
    (value,) = [each.value for each in http.cookies.jar if each.name == name]
    assert value is not None
    return value


async def session_of(http: httpx.AsyncClient) -> dict[str, Any]:
    answer = await http.get("/auth/session")
    assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
    described: dict[str, Any] = answer.json()
    return described


async def test_a_user_signs_in_and_is_known_at_http_and_websockets(world: SignInWorld) -> None:
    async with world.browser() as http:
        assert (await http.get("/v1/models")).status_code == 401
        assert await session_of(http) == {"signed_in": False, "keys": True, "refreshable": False}
        done = await sign_in(http, world.page, "ana", path="/?session=ses_a")
        assert (done.status_code, done.headers["location"]) == (303, f"{world.page}/?session=ses_a")
        for cookie in done.headers.get_list("set-cookie"):
            assert ("HttpOnly" in cookie and "SameSite=Strict" in cookie) or "Max-Age=0" in cookie
        known = await session_of(http)
        assert (known["signed_in"], known["tenant"], known["user"], known["role"]) == (True, "acme", "ana", "user")
        assert known["refreshable"] and (await http.get("/v1/models")).status_code == 200
        answer = await http.post("/v1/responses", json=REQUEST, headers=world.own_page)
        assert answer.status_code == 200, answer.text
        async with connect(
            world.assembly.ws,
            additional_headers={"Cookie": f"sessile-session={cookie_of(http)}"},
            origin=Origin(world.page),
        ) as ws:
            await ws.send('{"type": "hello"}')
            assert msgspec.json.decode(await ws.recv())["type"] == "ready"
            await ws.send('{"type": "session.list", "id": "l"}')
            listed = msgspec.json.decode(await ws.recv())
            assert [each["id"] for each in listed["data"]] == [answer.headers["x-session-id"]]
        assert (await http.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})).status_code == 200
        assert (await http.get("/v1/operator/overview")).status_code == 403


async def test_a_list_of_groups_makes_an_operator(world: SignInWorld) -> None:
    async with world.browser() as http:
        await sign_in(http, world.page, "boss")
        assert (await session_of(http))["role"] == "operator"
        assert (await http.get("/v1/operator/overview")).status_code == 200
        rows = (await http.get("/v1/audit", params={"limit": 10})).json()["data"]
        assert [row["action"] for row in rows if row["action"].startswith("user.")] == ["user.signed_in"]


async def test_signing_out_ends_what_is_open_and_goes_to_the_provider(world: SignInWorld) -> None:
    async with world.browser() as http:
        await sign_in(http, world.page, "ana")
        kept = {each.name: each.value or "" for each in http.cookies.jar if each.name.startswith("sessile-")}
        header = {"Cookie": f"sessile-session={kept['sessile-session']}"}
        async with connect(world.assembly.ws, additional_headers=header, origin=Origin(world.page)) as ws:
            await ws.send('{"type": "hello"}')
            await ws.recv()
            assert (await http.post("/auth/sign-out", headers=world.own_page)).status_code == 204
            with pytest.raises(ConnectionClosedError) as closed:
                async with asyncio.timeout(60):
                    while True:
                        await ws.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 4401
        left = await http.get("/auth/signed-out")
        assert left.headers["location"].startswith(f"{world.issuer}/session/end?") and "id_token_hint=" in str(
            left.headers["location"]
        )
        back = await at_provider(http, left.headers["location"], "ana", back_at=f"{world.page}/")
        assert back.headers["location"].startswith(f"{world.page}/")
        assert not [each for each in http.cookies.jar if each.name.startswith("sessile-") and each.value]
        async with world.browser() as thief:  # who kept the cookies has nothing of them
            cookies = "; ".join(f"{name}={value}" for name, value in kept.items())
            assert (await thief.get("/v1/models", headers={"cookie": cookies})).status_code == 401
            again = await thief.post("/auth/refresh", headers={"cookie": cookies, **world.own_page})
            assert again.status_code == 401


async def test_a_session_is_renewed_until_its_last_moment() -> None:
    async with a_sign_in_world(ttl_s=60) as world, world.browser() as http:
        await sign_in(http, world.page, "ana")
        first, was = await session_of(http), cookie_of(http)
        world.clock.ahead_ms += 50_000
        renewed = await http.post("/auth/refresh", headers=world.own_page)
        assert renewed.status_code == 200, renewed.text
        assert renewed.json().keys() == {"expires_at"} and renewed.json()["expires_at"] > first["expires_at"]
        world.clock.ahead_ms += 15_000
        old = await http.get("/v1/models", headers={"cookie": f"sessile-session={was}"})
        assert (old.status_code, old.json()["error"]["code"]) == (401, "token_expired")
        assert (await http.get("/v1/models")).status_code == 200
        world.clock.ahead_ms += 43_200_000
        assert (await http.post("/auth/refresh", headers=world.own_page)).status_code == 401


async def test_pages_say_that_people_may_sign_in(world: SignInWorld) -> None:
    async with world.browser() as http:
        for path in ("/", "/operator"):
            assert '<html lang="en" data-sign-in="">' in (await http.get(path)).text
