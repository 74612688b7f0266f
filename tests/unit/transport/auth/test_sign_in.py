"""Signing in at an OpenID provider: what is believed of it, cookies, sessions, and the doors."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from persistence.at_rest.server_keys import MemoryServerKeys
from persistence.memory.journal import MemoryJournal
from persistence.sql.revocations import SqlRevocations
from sessions.model.errors import BadInput, Forbidden, SessileError, Unauthorized, Unavailable
from sessions.model.types import Principal, UnixMs
from tests.support.doors.assembly import assembled
from tests.support.openid.scripted import ISSUER, NOW_S, SETTINGS, ScriptedProvider, id_token
from transport.auth.api_key_cache import ApiKeyCache
from transport.auth.authenticator import Authenticator, Issuance
from transport.auth.openid_provider import LOGOUT_EVENT, ProviderSettings, discover
from transport.auth.origins import CSRF_HEADER
from transport.auth.revocation_cache import RevocationCache
from transport.auth.sealed_cookies import COOKIE_BYTES_MAX, CookieSealer, read_cookie
from transport.auth.sign_in import PublicUrl, SignedIn, SignIn, SignInBegun, check_next


async def discovered(scripted: ScriptedProvider, settings: ProviderSettings = SETTINGS) -> SessileError | None:
    try:
        await discover(settings, now_ms=scripted.now_ms, clock=lambda: 0.0, send=scripted.send)
    except SessileError as error:
        return error
    return None


WRONG_METADATA: list[dict[str, Any]] = [
    {"issuer": "https://login.example/"},
    {"token_endpoint": "http://login.example/token"},
    {"authorization_endpoint": "javascript:alert(1)"},
    {"jwks_uri": "//login.example"},
    {"end_session_endpoint": "http://login.example/end"},
    {"token_endpoint": None},
    {"code_challenge_methods_supported": ["plain"]},
    {"id_token_signing_alg_values_supported": ["none", "HS256"]},
]


@pytest.mark.parametrize("wrong", WRONG_METADATA, ids=str)
async def test_metadata_that_is_not_believed_ends_the_start(wrong: dict[str, Any]) -> None:
    scripted = ScriptedProvider()
    scripted.metadata |= wrong
    error = await discovered(scripted)
    assert isinstance(error, BadInput) and error.param == "oidc_issuer"


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"issuer": "http://login.example"}, "oidc_issuer"),
        ({"issuer": ""}, "oidc_client_id"),
        ({"client_id": ""}, "oidc_client_id"),
        ({"tenant": ""}, "oidc_tenant"),
        ({"tenant_claim": "org"}, "oidc_tenant"),
        ({"scopes": ("email",)}, "oidc_scopes"),
        ({"roles": ()}, "oidc_roles"),
    ],
)
async def test_settings_that_do_not_fit_name_the_one_that_is_wrong(changed: dict[str, Any], param: str) -> None:
    error = await discovered(ScriptedProvider(), msgspec.structs.replace(SETTINGS, **changed))
    assert isinstance(error, BadInput) and error.param == param


async def test_a_provider_that_does_not_answer_ends_the_start() -> None:
    scripted = ScriptedProvider()
    scripted.failure = OSError("refused")
    assert "refused" in str(await discovered(scripted))
    scripted.failure, scripted.status = None, 302
    assert "answers 302" in str(await discovered(scripted))


async def test_the_secret_goes_as_the_provider_takes_it() -> None:
    scripted = ScriptedProvider()
    await (await scripted.provider()).exchange(code="c", verifier="v", redirect_uri="r")
    url, form, headers = scripted.sent[-1]
    assert url == f"{ISSUER}/token" and form["code_verifier"] == "v" and "client_secret" not in form
    assert base64.b64decode(headers["authorization"].removeprefix("Basic ")) == b"sessile:a+b%3Ac"
    posted = await scripted.provider(token_endpoint_auth_methods_supported=["client_secret_post"])
    await posted.refresh("r")
    assert scripted.sent[-1][1]["client_secret"] == "a b:c" and "authorization" not in scripted.sent[-1][2]
    public = await scripted.provider(msgspec.structs.replace(SETTINGS, client_secret=""))
    await public.refresh("r")
    assert not {"client_secret", "authorization"} & (scripted.sent[-1][1].keys() | scripted.sent[-1][2].keys())


async def test_what_a_token_endpoint_may_answer() -> None:
    scripted = ScriptedProvider(refresh_token="r", expires_in=60, access_token="a", more=1)
    provider = await scripted.provider()
    tokens = await provider.refresh("old")
    assert (tokens.refresh_token, tokens.expires_in) == ("r", 60) and not hasattr(tokens, "access_token")
    cases: list[tuple[int, Any, type[SessileError]]] = [
        (400, {"error": "invalid_grant"}, Unauthorized),
        (401, {"error": "invalid_client"}, Unavailable),
        (400, "no object", Unauthorized),
        (302, {}, Unauthorized),
        (503, {}, Unavailable),
        (429, {}, Unavailable),
        (200, [], Unauthorized),
        (200, {"id_token": 5}, Unauthorized),
        (200, {"id_token": "x" * 9000}, Unauthorized),
        (200, {"expires_in": -1}, Unauthorized),
        (200, {"more": "x" * 300_000}, Unauthorized),
    ]
    for scripted.status, scripted.answer, kind in cases:
        with pytest.raises(kind):
            await provider.refresh("old")
    scripted.failure = OSError("away")
    with pytest.raises(Unavailable):
        await provider.refresh("old")


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "other"},
        {"nonce": None},
        {"nonce": 5},
        {"aud": "other"},
        {"aud": ["sessile", "other"]},
        {"aud": ["sessile", "other"], "azp": "other"},
        {"azp": "other"},
        {"iss": "https://evil.example"},
        {"exp": 1_700_000_000},
        {"sub": None},
    ],
    ids=str,
)
async def test_id_tokens_that_are_not_this_sign_ins(claims: dict[str, Any]) -> None:
    provider = await ScriptedProvider().provider()
    with pytest.raises(Unauthorized):
        await provider.principal_of(id_token(**claims), nonce="n")


LOGOUT: dict[str, Any] = {"nonce": None, "iat": NOW_S, "events": {LOGOUT_EVENT: {}}}


async def test_a_logout_token_says_who_and_until_when() -> None:
    provider = await ScriptedProvider().provider()
    now = UnixMs(NOW_S * 1000 + 500)
    assert provider.signed_out(id_token(**LOGOUT), now) == ("ana", now)  # not from a moment that is to come
    assert provider.signed_out(id_token(**LOGOUT), UnixMs(now + 9_000)) == ("ana", NOW_S * 1000 + 999)


@pytest.mark.parametrize(
    "wrong",
    [
        {"events": None},
        {"events": {"https://other.example/event": {}}},
        {"events": {LOGOUT_EVENT: "yes"}},
        {"events": [LOGOUT_EVENT]},
        {"nonce": "n"},
        {"iat": None},
        {"iat": NOW_S - 301},
        {"sub": None, "sid": "s"},
        {"sub": 5},
        {"aud": "another"},
        {"exp": NOW_S - 60},
        {"iss": "https://evil.example"},
    ],
    ids=str,
)
async def test_a_logout_token_that_is_wrong_or_old_is_refused(wrong: dict[str, Any]) -> None:
    provider = await ScriptedProvider().provider()
    with pytest.raises(Unauthorized):
        provider.signed_out(id_token(**{**LOGOUT, **wrong}), UnixMs(NOW_S * 1000))


async def test_a_key_that_the_provider_has_just_begun_to_use_is_fetched() -> None:
    scripted = ScriptedProvider()
    provider, new = await scripted.provider(), ec.generate_private_key(ec.SECP256R1())
    scripted.keys.append(scripted.jwk(new, "k2"))
    assert (await provider.principal_of(id_token(new, "k2", aud=["sessile"]), nonce="n")).user == "ana"
    with pytest.raises(SessileError):
        await provider.principal_of(id_token(new, "k3"), nonce="n")


async def test_addresses_keep_the_query_that_the_provider_gave_them() -> None:
    provider = await ScriptedProvider().provider()
    url = provider.authorization_url(redirect_uri="https://a/b", state="s", nonce="n", challenge="c")
    assert url.startswith(f"{ISSUER}/auth?kind=web&response_type=code&client_id=sessile&") and "prompt" not in url
    assert "id_token_hint=i" in (provider.end_session_url(id_token="i", after="https://a/") or "")
    without = await ScriptedProvider().provider(end_session_endpoint=None)
    assert without.end_session_url(id_token="i", after="https://a/") is None


class Thing(msgspec.Struct, frozen=True, array_like=True):
    word: str


def test_what_was_sealed_is_opened_under_its_name_only() -> None:
    keys = MemoryServerKeys()
    sealer = CookieSealer(keys, "here")
    written = sealer.seal("a", Thing("ünï"))
    assert written is not None and "ü" not in written
    assert sealer.open("a", written, Thing) == Thing("ünï")
    assert CookieSealer(keys, "here").open("a", written, Thing) == Thing("ünï")
    assert sealer.seal("a", Thing("ünï")) != written
    assert sealer.open("b", written, Thing) is None
    assert CookieSealer(keys, "there").open("a", written, Thing) is None
    assert CookieSealer(MemoryServerKeys(), "here").open("a", written, Thing) is None


def test_every_changed_letter_closes_it() -> None:
    sealer = CookieSealer(MemoryServerKeys(), "here")
    written = sealer.seal("a", Thing("word")) or ""
    for place in range(len(written) - 1):  # the last letter has bits that stand for nothing
        other = "A" if written[place] != "A" else "B"
        assert sealer.open("a", written[:place] + other + written[place + 1 :], Thing) is None
    for text in ("", "A", "====", "ä", "A" * (COOKIE_BYTES_MAX + 4), written + "!"):
        assert sealer.open("a", text, Thing) is None


@pytest.mark.parametrize(
    ("headers", "value"),
    [
        ([], None),
        (["b=1"], None),
        (["a"], None),
        (["xa=1; b=2"], None),
        (["a=1"], "1"),
        (["b=2;  a=1=2 ; c"], "1=2"),
        (["b=2", "a=1"], "1"),
        (["a=1; a=1"], ""),
        (["a=1", "a=2"], ""),
    ],
)
def test_a_cookie_that_comes_twice_is_none(headers: list[str], value: str | None) -> None:
    assert read_cookie(headers, "a") == value


PAGE = "https://chat.example/sessile"


async def a_sign_in(scripted: ScriptedProvider, *, session_s: float = 1000, page: str = PAGE) -> SignIn:
    sealer = CookieSealer(MemoryServerKeys(), "here")
    return SignIn(await scripted.provider(), sealer, PublicUrl(page), session_s=session_s, now_ms=scripted.now_ms)


def pairs(cookies: list[str]) -> list[str]:
    """As a browser sends them back."""
    return ["; ".join(cookie.partition(";")[0] for cookie in cookies)]


async def signed_in(sign_in: SignIn, scripted: ScriptedProvider) -> SignedIn:
    url, cookie = sign_in.begin("/sessile/")
    query = {name: value for name, (value,) in parse_qs(urlsplit(url).query).items()}
    scripted.answer["id_token"] = id_token(nonce=query["nonce"], exp=int(scripted.now_s) + 600)
    return await sign_in.complete({"state": query["state"], "code": "c"}, pairs([cookie]))


def ignore(_: Principal) -> None:
    """Nothing was revoked."""


@pytest.mark.parametrize(
    "written",
    ["", "chat.example", "http://chat.example", "ftp://chat.example", "https://a@b", "https://a/?b", "https://a:b"],
)
def test_an_address_that_browsers_cannot_safely_come_back_to(written: str) -> None:
    with pytest.raises(BadInput) as caught:
        PublicUrl(written)
    assert caught.value.param == "public_url"


def test_origins_are_as_browsers_write_them() -> None:
    for written, origin in (
        ("https://Chat.Example:443/a/", "https://chat.example"),
        ("https://chat.example:8443", "https://chat.example:8443"),
        ("http://[::1]:80", "http://[::1]"),
    ):
        assert PublicUrl(written).origin == origin
    assert PublicUrl(PAGE + "/").at("/auth/callback") == PAGE + "/auth/callback"
    for path in ("/", "/a?b=c#d", "/operator"):
        check_next(path)


async def test_cookies_are_bound_to_the_host_and_to_their_paths() -> None:
    scripted = ScriptedProvider(refresh_token="r")
    done = await signed_in(await a_sign_in(scripted), scripted)
    session, refresh, hint, begun = done.cookies
    assert session.startswith("__Host-sessile-session=") and "Path=/;" in session and "Secure" in session
    assert refresh.startswith("__Secure-sessile-refresh=") and "Path=/sessile/auth;" in refresh
    assert hint.startswith("__Secure-sessile-hint=") and begun.startswith("__Host-sessile-begin=;")
    assert all("HttpOnly" in each and "SameSite=Strict" in each for each in (session, refresh, hint))
    assert "Max-Age=1000;" in refresh and scripted.answer["id_token"] not in "".join(done.cookies)


async def test_a_session_lasts_as_its_tokens_do_and_never_longer_than_is_allowed() -> None:
    scripted = ScriptedProvider(refresh_token="r1")
    sign_in = await a_sign_in(scripted)
    done = await signed_in(sign_in, scripted)
    assert done.principal.expires_at == (NOW_S + 630) * 1000  # the ID token's end, and what clocks may differ
    scripted.answer |= {"expires_in": 50, "refresh_token": "r2", "id_token": None}
    scripted.now_s += 500
    newer = await sign_in.refresh(pairs(done.cookies), ignore)
    assert newer.principal.expires_at == (NOW_S + 550) * 1000
    assert newer.principal.token == done.principal.token and newer.principal.user == "ana"
    assert scripted.sent[-1][1]["refresh_token"] == "r1"
    scripted.answer |= {"expires_in": 5000, "refresh_token": None}
    scripted.now_s += 400
    last = await sign_in.refresh(pairs(newer.cookies), ignore)
    assert scripted.sent[-1][1]["refresh_token"] == "r2" and last.principal.expires_at == (NOW_S + 1000) * 1000
    await sign_in.refresh(pairs(last.cookies), ignore)
    assert scripted.sent[-1][1]["refresh_token"] == "r2"
    scripted.now_s += 100
    with pytest.raises(Unauthorized):
        await sign_in.refresh(pairs(last.cookies), ignore)
    with pytest.raises(Unauthorized):
        sign_in.session_of(sign_in.session_cookie(pairs(last.cookies)) or "")


async def test_a_renewed_session_stays_the_same_persons() -> None:
    scripted = ScriptedProvider(refresh_token="r")
    sign_in = await a_sign_in(scripted)
    done = await signed_in(sign_in, scripted)
    scripted.answer["id_token"] = id_token(sub="ben", nonce=None)
    with pytest.raises(Unauthorized):
        await sign_in.refresh(pairs(done.cookies), ignore)
    seen: list[Principal] = []

    def revoked(principal: Principal) -> None:
        seen.append(principal)
        raise Unauthorized("unauthorized", "Revoked.")

    requests = len(scripted.sent)
    with pytest.raises(Unauthorized):
        await sign_in.refresh(pairs(done.cookies), revoked)
    assert seen[0].token == done.principal.token and len(scripted.sent) == requests


async def test_tokens_that_no_cookie_holds_are_not_kept() -> None:
    scripted = ScriptedProvider(refresh_token="r" * 4000)
    sign_in = await a_sign_in(scripted)
    done = await signed_in(sign_in, scripted)
    assert "__Secure-sessile-refresh=;" in done.cookies[1] and not sign_in.can_refresh(pairs(done.cookies))
    assert all(len(each) < 4096 for each in done.cookies)
    assert sign_in.session_of(sign_in.session_cookie(pairs(done.cookies)) or "").user == "ana"


async def test_the_providers_refusal_is_repeated_as_a_word_only() -> None:
    scripted = ScriptedProvider()
    sign_in = await a_sign_in(scripted)
    _, cookie = sign_in.begin("/")
    begun = sign_in._open("begin", pairs([cookie]), SignInBegun)
    assert begun is not None
    for error, shown in (("access_denied", "access_denied"), ("<b>", "unknown error"), ("x" * 65, "unknown error")):
        with pytest.raises(Unauthorized) as caught:
            await sign_in.complete({"state": begun.state, "error": error}, pairs([cookie]))
        assert caught.value.public_message.endswith(f"{shown}.")
    scripted.answer = {}
    with pytest.raises(Unauthorized):
        await sign_in.complete({"state": begun.state, "code": "c"}, pairs([cookie]))


async def test_only_our_own_page_changes_anything() -> None:
    sign_in = await a_sign_in(ScriptedProvider())
    own = "https://chat.example"
    sign_in.check_page(origin=own, site="same-origin", header="1")
    sign_in.check_page(origin=own, site=None, header="1")
    for origin, site, header in (
        (None, None, "1"),
        ("null", None, "1"),
        (own, "same-site", "1"),
        (own + ".evil.example", None, "1"),
        ("http://chat.example", None, "1"),
        (own, "same-origin", None),
        (own, "same-origin", ""),
    ):
        with pytest.raises(Forbidden):
            sign_in.check_page(origin=origin, site=site, header=header)


SIGN_IN_PAGE = "https://chat.example"
OWN = {"origin": SIGN_IN_PAGE, CSRF_HEADER: "1"}


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    scripted, clock = ScriptedProvider(), asyncio.get_running_loop().time
    sealer = CookieSealer(MemoryServerKeys(), "here")
    sign_in = SignIn(await scripted.provider(), sealer, PublicUrl(SIGN_IN_PAGE), session_s=60, now_ms=scripted.now_ms)

    def admit(journal: MemoryJournal) -> tuple[Authenticator, ApiKeyCache | None]:
        revocations = RevocationCache(SqlRevocations(journal.database), scripted.now_ms, clock)
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
    assert f'href="{SIGN_IN_PAGE}/"' in failed.text


async def test_who_has_nothing_is_signed_out_already(http: httpx.AsyncClient) -> None:
    described = await http.get("/auth/session")
    assert described.json() == {"signed_in": False, "keys": False, "refreshable": False}
    assert (await http.post("/auth/sign-out")).status_code == 403
    assert (await http.post("/auth/sign-out", headers=OWN)).status_code == 204
    assert (await http.post("/auth/refresh", headers=OWN)).status_code == 401
    left = await http.get("/auth/signed-out")
    assert (left.status_code, left.headers["location"]) == (303, f"{SIGN_IN_PAGE}/")


async def test_without_any_key_everything_else_is_closed(http: httpx.AsyncClient) -> None:
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/responses"), ("POST", "/auth/session"), ("GET", "/v1/x")):
        assert (await http.request(method, path)).status_code == 401
    assert (await http.get("/")).status_code == 200
