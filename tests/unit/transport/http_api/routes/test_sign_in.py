"""The doors of a sign-in: what they answer to who has nothing, and what a failure looks like to a person."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from persistence.at_rest.server_keys import MemoryServerKeys
from persistence.memory.journal import MemoryJournal
from persistence.memory.revocations import MemoryRevocations
from tests.support.doors.assembly import assembled
from tests.support.openid.scripted import ISSUER, ScriptedProvider
from transport.auth.api_key_cache import ApiKeyCache
from transport.auth.authenticator import Authenticator, Issuance
from transport.auth.origins import CSRF_HEADER
from transport.auth.revocation_cache import RevocationCache
from transport.auth.sealed_cookies import CookieSealer
from transport.auth.sign_in import PublicUrl, SignIn

PAGE = "https://chat.example"
OWN = {"origin": PAGE, CSRF_HEADER: "1"}


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    scripted, clock = ScriptedProvider(), asyncio.get_running_loop().time
    sealer = CookieSealer(MemoryServerKeys(), "here")
    sign_in = SignIn(await scripted.provider(), sealer, PublicUrl(PAGE), session_s=60, now_ms=scripted.now_ms)

    def admit(journal: MemoryJournal) -> tuple[Authenticator, ApiKeyCache | None]:
        revocations = RevocationCache(MemoryRevocations(journal.database), scripted.now_ms, clock)
        issued = Issuance(None, sign_in, revocations, (ISSUER,))
        return Authenticator({}, clock=clock, now_ms=scripted.now_ms, issued=issued), None

    async with (
        assembled(admit=admit) as assembly,
        httpx.AsyncClient(base_url=assembly.server.url, headers={"host": "chat.example"}, timeout=60) as client,
    ):
        yield client


async def test_a_sign_in_begins_with_a_redirect_and_a_cookie(http: httpx.AsyncClient) -> None:
    begun = await http.get("/auth/sign-in", params={"next": "/operator"})
    assert begun.status_code == 303 and begun.headers["location"].startswith(f"{ISSUER}/auth?")
    assert begun.headers["set-cookie"].startswith("__Host-sessile-begin=") and "Lax" in begun.headers["set-cookie"]
    assert begun.headers["cache-control"] == "no-store"
    assert (await http.get("/auth/sign-in", params={"next": "//evil.example"})).status_code == 400


async def test_a_failure_is_a_page_that_runs_nothing(http: httpx.AsyncClient) -> None:
    failed = await http.get("/auth/callback", params={"state": "<script>", "code": "c"})
    assert failed.status_code == 400 and failed.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in failed.headers["content-security-policy"] and "<script" not in failed.text
    assert f'href="{PAGE}/"' in failed.text


async def test_who_has_nothing_is_signed_out_already(http: httpx.AsyncClient) -> None:
    described = await http.get("/auth/session")
    assert described.json() == {"signed_in": False, "keys": False, "refreshable": False}
    assert (await http.post("/auth/sign-out")).status_code == 403
    assert (await http.post("/auth/sign-out", headers=OWN)).status_code == 204
    assert (await http.post("/auth/refresh", headers=OWN)).status_code == 401
    left = await http.get("/auth/signed-out")
    assert (left.status_code, left.headers["location"]) == (303, f"{PAGE}/")


async def test_without_any_key_everything_else_is_closed(http: httpx.AsyncClient) -> None:
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/responses"), ("POST", "/auth/session"), ("GET", "/v1/x")):
        assert (await http.request(method, path)).status_code == 401
    assert (await http.get("/")).status_code == 200
