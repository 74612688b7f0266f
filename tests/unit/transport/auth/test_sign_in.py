"""The flow of a sign-in without doors: public addresses, cookies, how long a session lasts, renewing."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from persistence.at_rest.server_keys import MemoryServerKeys
from sessions.model.errors import BadInput, Forbidden, Unauthorized
from sessions.model.types import Principal
from tests.support.openid.scripted import NOW_S, ScriptedProvider, id_token
from transport.auth.sealed_cookies import CookieSealer
from transport.auth.sign_in import PublicUrl, SignedIn, SignIn, SignInBegun, check_next

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
