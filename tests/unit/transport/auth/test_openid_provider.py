"""What is believed of an OpenID provider, and everything that is not: metadata, answers, ID tokens."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from sessions.model.errors import BadInput, SessileError, Unauthorized, Unavailable
from sessions.model.types import UnixMs
from tests.support.openid.scripted import ISSUER, NOW_S, SETTINGS, ScriptedProvider, id_token
from transport.auth.openid_provider import LOGOUT_EVENT, ProviderSettings, discover


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
