"""Attacks on signing in: answers that belong to no sign-in of this browser, other pages that use its cookies, cookies
that are changed, borrowed or kept, and redirects that lead elsewhere. The provider is a real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import grpc
import grpc.aio
import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.typing import Origin

from persistence.at_rest.server_keys import MemoryServerKeys
from sessions.model.errors import BadInput
from tests.support.openid.provider import at_provider, sign_in
from tests.support.openid.world import KEY, SignInWorld, a_sign_in_world
from transport.auth.origins import CSRF_HEADER
from transport.auth.sealed_cookies import CookieSealer
from transport.auth.sign_in import SignInHint, SignInSession, challenge_of, check_next
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api import sessile_pb2_grpc as rpc
from transport.grpc_api.server import GrpcServer

SESSION = "sessile-session"
BODY = {"model": "simulated", "input": "Of the sea.", "max_output_tokens": 2}


@pytest.fixture
async def world() -> AsyncIterator[SignInWorld]:
    async with a_sign_in_world() as made:
        yield made


async def callback_of(world: SignInWorld, http: httpx.AsyncClient, login: str = "ana") -> str:
    """Where the provider sends the browser back to, with its code."""
    begun = await http.get("/auth/sign-in")
    back = await at_provider(http, begun.headers["location"], login, back_at=f"{world.page}/auth/callback")
    return str(back.headers["location"])


def with_query(url: str, **changed: str | None) -> str:
    query = {**dict(parse_qsl(urlsplit(url).query)), **changed}
    return f"{url.partition('?')[0]}?{urlencode({name: value for name, value in query.items() if value is not None})}"


def cookie_of(http: httpx.AsyncClient, name: str = SESSION) -> str:
    (value,) = [each.value for each in http.cookies.jar if each.name == name]
    assert value
    return value


async def refused(http: httpx.AsyncClient, url: str, status: int) -> None:
    answer = await http.get(url)
    assert answer.status_code == status, answer.text
    assert not [each for each in http.cookies.jar if each.name == SESSION]
    assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_an_answer_without_the_state_or_with_another_is_refused(world: SignInWorld) -> None:
    async with world.browser() as http, world.browser() as other:
        url = await callback_of(world, http)
        for state in (None, "", "x", dict(parse_qsl(urlsplit(await callback_of(world, other)).query))["state"]):
            await refused(http, with_query(url, state=state), 400)
        for issuer in (None, "https://evil.example"):  # mix-up: this provider always says who it is
            await refused(http, with_query(url, iss=issuer), 400)
        assert (await http.get(url)).status_code == 303


async def test_a_link_with_an_attackers_code_signs_nobody_in(world: SignInWorld) -> None:
    async with world.browser() as attacker, world.browser() as victim:
        url = await callback_of(world, attacker, "mallory")
        await refused(victim, url, 400)  # no sign-in was begun there
        await victim.get("/auth/sign-in")
        await refused(victim, url, 400)  # another one was


async def test_a_sign_in_is_completed_once_and_in_time(world: SignInWorld) -> None:
    async with world.browser() as http, world.browser() as thief:
        url = await callback_of(world, http)
        begun = f"sessile-begin={cookie_of(http, 'sessile-begin')}"
        assert (await http.get(url)).status_code == 303
        assert not [each for each in http.cookies.jar if each.name == "sessile-begin" and each.value]
        replayed = await thief.get(url, headers={"cookie": begun})  # with the state's cookie, too
        assert replayed.status_code == 401 and SESSION not in replayed.headers.get("set-cookie", "")
        late = await callback_of(world, thief)
        world.clock.ahead_ms += 601_000
        await refused(thief, late, 400)


async def test_a_code_is_worth_nothing_without_its_verifier(world: SignInWorld) -> None:
    """PKCE: the code of one sign-in, put into another whose state the attacker knows."""
    async with world.browser() as victim, world.browser() as attacker:
        code = dict(parse_qsl(urlsplit(await callback_of(world, victim)).query))["code"]
        own = await callback_of(world, attacker, "mallory")
        await refused(attacker, with_query(own, code=code), 401)


async def test_every_request_demands_pkce_with_s256_a_state_and_a_nonce(world: SignInWorld) -> None:
    async with world.browser() as http:
        seen = set()
        for _ in range(5):
            location = (await http.get("/auth/sign-in")).headers["location"]
            query = {name: value for name, (value,) in parse_qs(urlsplit(location).query).items()}
            assert query["code_challenge_method"] == "S256" and len(query["code_challenge"]) == 43
            assert query["response_type"] == "code" and query["redirect_uri"] == f"{world.page}/auth/callback"
            assert len(query["state"]) >= 32 and len(query["nonce"]) >= 32
            seen |= {query["state"], query["nonce"], query["code_challenge"]}
        assert len(seen) == 15
        without = with_query(location, code_challenge=None, code_challenge_method=None)
        plain = with_query(location, code_challenge_method="plain")
        for url in (without, plain):  # whoever takes it out on the way gets no code
            answer = await http.get(url)
            assert "code=" not in answer.headers.get("location", ""), url
    assert challenge_of("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk") == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


async def test_an_id_token_of_another_sign_in_is_refused(world: SignInWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = world.sign_in.provider
    real = provider.principal_of

    async def with_other_nonce(id_token: str, *, nonce: str | None) -> Any:
        return await real(id_token, nonce=f"{nonce}x")

    async with world.browser() as http:
        url = await callback_of(world, http)
        monkeypatch.setattr(provider, "principal_of", with_other_nonce)
        await refused(http, url, 401)


@pytest.mark.parametrize(
    "path",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "\\\\evil.example",
        "javascript:alert(1)",
        "/a\r\nset-cookie: x=y",
        "/\t/evil.example",
        "evil.example",
        "/ä",
        "/" + "a" * 600,
    ],
)
async def test_nobody_is_sent_elsewhere(path: str) -> None:
    with pytest.raises(BadInput):
        check_next(path)


async def test_the_callback_leads_to_this_server_alone(world: SignInWorld) -> None:
    async with world.browser() as http:
        answer = await http.get("/auth/sign-in", params={"next": "https://evil.example/"})
        assert answer.status_code == 400 and "location" not in answer.headers
        headers = {"host": "evil.example", "x-forwarded-host": "evil.example", "x-forwarded-proto": "https"}
        begun = await http.get("/auth/sign-in", headers=headers)
        assert begun.status_code in (303, 403)
        if begun.status_code == 303:
            assert f"redirect_uri={urlencode({'': world.page})[1:]}" in begun.headers["location"]


WRONG_PAGES: dict[str, Callable[[SignInWorld], dict[str, str]]] = {
    "another site": lambda world: {**world.own_page, "origin": "https://evil.example"},
    "another port": lambda world: {**world.own_page, "origin": "http://127.0.0.1:1"},
    "no origin": lambda world: {CSRF_HEADER: "1"},
    "a sandboxed frame": lambda world: {**world.own_page, "origin": "null"},
    "a form": lambda world: {"origin": world.page, "content-type": "application/x-www-form-urlencoded"},
    "another page of the site": lambda world: {**world.own_page, "sec-fetch-site": "same-site"},
}


@pytest.mark.parametrize("wrong", WRONG_PAGES)
async def test_another_page_changes_nothing_with_the_cookie(world: SignInWorld, wrong: str) -> None:
    async with world.browser() as http:
        await sign_in(http, world.page, "boss")
        headers = WRONG_PAGES[wrong](world)
        for method, path in (
            ("POST", "/v1/responses"),
            ("POST", "/v1/ws/tickets"),
            ("DELETE", "/v1/keys/aaaaaaaaaaaa"),
            ("PATCH", "/v1/sessions/ses_a"),
            ("POST", "/auth/sign-out"),
            ("POST", "/auth/refresh"),
            ("POST", "/v1/operator/revocations"),
        ):
            answer = await http.request(method, path, headers=headers, content=msgspec.json.encode(BODY))
            assert (path, answer.status_code) == (path, 403)
        assert (await http.get("/v1/sessions")).json()["data"] == []
        for site in ("cross-site", "same-site"):
            assert (await http.get("/v1/sessions", headers={"sec-fetch-site": site})).status_code == 403
        key = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        allowed = await http.post("/v1/ws/tickets", headers=key)  # who shows a key needs no page
        assert allowed.status_code == 201


async def test_a_websocket_of_another_page_is_nobodys(world: SignInWorld) -> None:
    async with world.browser() as http:
        await sign_in(http, world.page, "ana")
        cookie = {"Cookie": f"{SESSION}={cookie_of(http)}"}
        with pytest.raises(InvalidStatus) as caught:
            async with connect(world.assembly.ws, additional_headers=cookie, origin=Origin("https://evil.example")):
                pass
        assert caught.value.response.status_code == 403
        for headers in (cookie, {**cookie, "Origin": world.page, "Sec-Fetch-Site": "same-site"}):
            async with connect(world.assembly.ws, additional_headers=headers) as ws:
                await ws.send('{"type": "hello"}')
                with pytest.raises(ConnectionClosedError) as closed:
                    async with asyncio.timeout(60):
                        while True:
                            await ws.recv()
                assert closed.value.rcvd is not None and closed.value.rcvd.code == 4401


async def test_grpc_takes_no_cookie(world: SignInWorld) -> None:
    server = GrpcServer(world.assembly.gateway, host="127.0.0.1", port=0)
    await server.start()
    try:
        async with world.browser() as http, grpc.aio.insecure_channel(server.address) as channel:
            await sign_in(http, world.page, "ana")
            value = cookie_of(http)
            for metadata in (
                (("cookie", f"{SESSION}={value}"), ("origin", world.page), (CSRF_HEADER, "1")),
                (("authorization", f"Bearer {value}"),),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await rpc.SessionsStub(channel).List(pb.ListRequest(limit=1), metadata=metadata)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            bearer = await http.get("/v1/models", headers={"authorization": f"Bearer {value}"})
            assert bearer.status_code == 401
    finally:
        await server.stop()


async def test_a_cookie_that_we_did_not_seal_for_this_is_nobodys(world: SignInWorld) -> None:
    async with world.browser() as http, world.browser() as plain:
        await sign_in(http, world.page, "ana")
        good, refresh = cookie_of(http), cookie_of(http, "sessile-refresh")
        changed = [good[:place] + ("A" if good[place] != "A" else "B") + good[place + 1 :] for place in range(0, 60, 3)]
        forged: dict[str, str] = {f"changed {n}": value for n, value in enumerate(changed)}
        about = f"{world.issuer} sessile {world.page}"
        for name, sealer in {
            "sealed by another gateway's key": CookieSealer(MemoryServerKeys(), about),
            "sealed for another server": CookieSealer(world.sign_in._sealer._keys, about + "x"),
        }.items():
            opened = world.sign_in._open("session", [f"{SESSION}={good}"], SignInSession)
            assert opened is not None
            forged[name] = str(sealer.seal("session", opened))
        forged |= {
            "another cookie of ours": refresh,
            "nothing": "",
            "cut off": good[:-10],
            "too long": good * 50,
            "no base64": "ä" * 40,
            "twice": f"{good}; {SESSION}={good}",
        }
        for name, value in forged.items():
            header = f"{SESSION}={value}".encode()
            answer = await plain.get("/v1/models", headers=[(b"cookie", header)])
            assert (name, answer.status_code) == (name, 401)
        assert (await plain.get("/v1/models", headers={"cookie": f"{SESSION}={good}"})).status_code == 200


async def test_another_page_of_the_site_reads_nothing_and_signs_nobody_out(world: SignInWorld) -> None:
    """Its requests have the cookies: SameSite keeps other sites off, not other ports and subdomains."""
    async with world.browser() as http:
        await sign_in(http, world.page, "ana")
        hint = cookie_of(http, "sessile-hint")
        for headers in ({"sec-fetch-site": "same-site"}, {"origin": "https://evil.example"}, {"origin": "null"}):
            about = (await http.get("/auth/session", headers=headers)).json()
            assert not about["signed_in"] and not about["refreshable"] and "user" not in about
            left = await http.get("/auth/signed-out", headers=headers)
            assert left.headers["location"] == f"{world.page}/"
            assert cookie_of(http, "sessile-hint") == hint
        assert (await http.get("/auth/session", headers={"sec-fetch-site": "same-origin"})).json()["signed_in"]
        left = await http.get("/auth/signed-out", headers={"sec-fetch-site": "same-origin"})
        assert left.headers["location"].startswith(world.issuer)


async def test_who_signs_out_at_the_provider_is_signed_out_here(world: SignInWorld) -> None:
    """Whoever had the device stayed signed in here for twelve hours."""
    async with world.browser() as http, world.browser() as elsewhere, world.browser() as other:
        for browser, name in ((http, "ana"), (elsewhere, "ana"), (other, "ben")):
            await sign_in(browser, world.page, name)
        query = urlencode({"client_id": "sessile", "post_logout_redirect_uri": f"{world.page}/"})
        await at_provider(http, f"{world.issuer}/session/end?{query}", "ana", back_at=world.page)
        for browser, status in ((http, 401), (elsewhere, 401), (other, 200)):
            assert (await browser.get("/v1/models")).status_code == status
        assert (await elsewhere.post("/auth/refresh", headers=world.own_page)).status_code == 401
        world.clock.ahead_ms += 1000
        await sign_in(http, world.page, "ana")
        assert (await http.get("/v1/models")).status_code == 200


async def test_wrong_keys_from_an_address_lock_its_people_out_of_nothing() -> None:
    async with a_sign_in_world(failures=4) as world, world.browser() as http:
        wrong = {"authorization": "Bearer nobody"}
        assert [(await http.get("/v1/models", headers=wrong)).status_code for _ in range(20)][-1] == 429
        await sign_in(http, world.page, "ana")
        assert (await http.get("/v1/models")).status_code == 200
        query = urlencode({"client_id": "sessile", "post_logout_redirect_uri": f"{world.page}/"})
        await at_provider(http, f"{world.issuer}/session/end?{query}", "ana", back_at=world.page)
        assert (await http.get("/v1/models")).status_code in (401, 429)


async def test_only_the_provider_says_who_signed_out(world: SignInWorld) -> None:
    async with world.browser() as http:
        await sign_in(http, world.page, "ana")
        hint = world.sign_in._open("hint", [f"sessile-hint={cookie_of(http, 'sessile-hint')}"], SignInHint)
        assert hint is not None
        head, claims, signature = hint.id_token.split(".")
        for form in (
            {"logout_token": hint.id_token},  # an ID token is none
            {"logout_token": f"{head}.{claims}."},
            {"logout_token": f"eyJhbGciOiJub25lIn0.{claims}.{signature}"},
            {"logout_token": "x"},
            {"logout_token": ""},
            {"token": hint.id_token},
            {},
        ):
            answer = await http.post("/auth/backchannel-logout", data=form)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logout_token"), form
        large = await http.post("/auth/backchannel-logout", data={"logout_token": "x" * 20_000})
        assert large.status_code == 413
        assert (await http.get("/v1/models")).status_code == 200


async def test_two_origins_are_none_of_ours(world: SignInWorld) -> None:
    async with world.browser() as http:
        await sign_in(http, world.page, "ana")
        own = [*world.own_page.items()]
        for headers in ([*own, ("origin", "https://evil.example")], [*own, ("sec-fetch-site", "cross-site")]):
            for path in ("/v1/ws/tickets", "/auth/sign-out"):
                assert (await http.post(path, headers=headers)).status_code == 403
        assert (await http.post("/v1/ws/tickets", headers=own)).status_code == 201


async def test_signing_out_again_writes_nothing(world: SignInWorld) -> None:
    """Who kept the cookie filled the audit log with it."""
    async with world.browser() as http, world.browser() as kept:
        await sign_in(http, world.page, "ana")
        header = {**world.own_page, "cookie": f"{SESSION}={cookie_of(http)}"}
        for _ in range(5):
            assert (await kept.post("/auth/sign-out", headers=header)).status_code == 204
        rows = (await kept.get("/v1/audit?limit=100", headers={"authorization": f"Bearer {KEY}"})).json()["data"]
        assert [row["action"] for row in rows].count("user.signed_out") == 1


async def test_who_signs_in_and_out_for_ever_leaves_room_for_what_operators_revoke(
    world: SignInWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("persistence.sql.revocations", "transport.auth.revocation_cache"):
        monkeypatch.setattr(f"{module}.REVOCATIONS_MAX", 4, raising=False)
    async with world.browser() as http, world.browser() as other:
        await sign_in(other, world.page, "mallory")
        for _ in range(6):
            await sign_in(http, world.page, "mallory")
            signed_out = await http.post("/auth/sign-out", headers=world.own_page)
            assert signed_out.status_code == 204, signed_out.text
        key = {"authorization": f"Bearer {KEY}"}
        revoked = await http.post("/v1/operator/revocations", headers=key, json={"subject": "ana"})
        assert revoked.status_code == 201, revoked.text
        assert (await other.get("/v1/models")).status_code == 401  # one for each person: all their sessions


async def test_no_shared_cache_keeps_what_a_cookie_opened(world: SignInWorld) -> None:
    async with world.browser() as http:
        await sign_in(http, world.page, "ana")
        for path in ("/v1/sessions", "/v1/models", "/v1/sessions/nothing", "/auth/session"):
            kept = (await http.get(path)).headers.get("cache-control", "")
            assert "private" in kept or "no-store" in kept, path


async def test_a_session_that_has_expired_opens_nothing(world: SignInWorld) -> None:
    async with world.browser() as http:
        await sign_in(http, world.page, "ana")
        value = cookie_of(http)
        world.clock.ahead_ms += 3_600_000
        answer = await http.get("/v1/models", headers={"cookie": f"{SESSION}={value}"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "token_expired")
        header = {"Cookie": f"{SESSION}={value}"}
        async with connect(world.assembly.ws, additional_headers=header, origin=Origin(world.page)) as ws:
            await ws.send('{"type": "hello"}')
            with pytest.raises(ConnectionClosedError):
                async with asyncio.timeout(60):
                    while True:
                        await ws.recv()


async def test_an_operator_ends_a_persons_sign_ins_and_no_later_one(world: SignInWorld) -> None:
    key = {"authorization": f"Bearer {KEY}"}
    async with world.browser() as http, world.browser() as other:
        await sign_in(http, world.page, "ana")
        await sign_in(other, world.page, "ben")
        answer = await other.post("/v1/operator/revocations", headers=world.own_page, json={"subject": "ana"})
        assert answer.status_code == 403  # no operator
        header = {"Cookie": f"{SESSION}={cookie_of(http)}"}
        async with connect(world.assembly.ws, additional_headers=header, origin=Origin(world.page)) as ws:
            await ws.send('{"type": "hello"}')
            await ws.recv()
            revoked = await other.post("/v1/operator/revocations", headers=key, json={"subject": "ana"})
            assert revoked.status_code == 201, revoked.text
            with pytest.raises(ConnectionClosedError) as closed:
                async with asyncio.timeout(60):
                    while True:
                        await ws.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 4401
        assert (await http.get("/v1/models")).status_code == 401
        assert (await http.post("/auth/refresh", headers=world.own_page)).status_code == 401
        assert (await other.get("/v1/models")).status_code == 200
        world.clock.ahead_ms += 1000
        await sign_in(http, world.page, "ana")
        assert (await http.get("/v1/models")).status_code == 200
        listed = (await other.get("/v1/operator/revocations", headers=key)).json()
        assert [(each["kind"], each["name"]) for each in listed["data"]] == [("subject", "ana")]
        for body in ({}, {"subject": "a", "token_id": "b"}, {"subject": "a", "issuer": "https://other.example"}):
            assert (await other.post("/v1/operator/revocations", headers=key, json=body)).status_code == 400
