"""Speaks with an OpenID provider: its metadata, the exchange of codes and refresh tokens, and its ID tokens.

What it answers is believed as little as a token is: the metadata must name the issuer that was configured, every
address in it is https (http on this machine only), no redirect is followed, an answer has at most `ANSWER_BYTES_MAX`,
and an ID token is checked like any other (`transport.auth.jwt_issuers`), with the nonce of the sign-in beside it.

Knows no cookies and no doors. OpenID Connect Core 1.0 (§3.1: code flow, §12: refresh), Discovery 1.0, RFC 7636 (PKCE).
"""

from __future__ import annotations

import base64
import hmac
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple, get_args
from urllib.parse import quote_plus, urlencode, urlsplit

import msgspec
import structlog
from msgspec import Meta

from sessions.model.errors import BadInput, Unauthorized, Unavailable
from sessions.model.types import Authority, Principal, UnixMs
from transport.addresses import is_loopback
from transport.auth.direct_fetch import fetch_direct
from transport.auth.jwt_issuers import FETCH_S, Algorithm, JwtIssuer, JwtIssuers

ANSWER_BYTES_MAX: Final = 256 * 1024
TOKEN_LENGTH_MAX: Final = 8192
LOGOUT_EVENT: Final = "http://schemas.openid.net/event/backchannel-logout"
LOGOUT_TYPES: Final = ("logout+jwt", "JWT")
LOGOUT_S: Final = 300  # the greatest age of a logout token

log = structlog.get_logger(__name__)

Url = Annotated[str, Meta(min_length=1, max_length=2048)]


class ProviderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of the identity provider: how this server is known there, and which claims it reads."""

    issuer: str
    client_id: str
    client_secret: str = ""  # empty for a public client, which only PKCE protects
    scopes: tuple[str, ...] = ("openid",)
    tenant: str = ""
    tenant_claim: str = ""
    user_claim: str = "sub"
    role_claim: str = ""
    roles: tuple[Authority, ...] = ("user",)


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a provider's metadata that are used here."""

    issuer: Url
    authorization_endpoint: Url
    token_endpoint: Url
    jwks_uri: Url
    end_session_endpoint: Url | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    id_token_signing_alg_values_supported: tuple[str, ...] = ("RS256",)
    authorization_response_iss_parameter_supported: bool = False


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a token endpoint. The access token is left out, because nothing here uses it."""

    id_token: Annotated[str, Meta(max_length=TOKEN_LENGTH_MAX)] | None = None
    refresh_token: Annotated[str, Meta(max_length=TOKEN_LENGTH_MAX)] | None = None
    expires_in: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class ProviderAnswer(NamedTuple):
    status: int
    body: bytes


Send = Callable[[str, Mapping[str, str] | None, Mapping[str, str]], Awaitable[ProviderAnswer]]


async def send(url: str, form: Mapping[str, str] | None, headers: Mapping[str, str]) -> ProviderAnswer:
    """Sends a GET, or a POST of a form. Follows no redirects. Raises OSError."""
    data = None if form is None else urlencode(form).encode()
    request = urllib.request.Request(url, data, {"accept": "application/json", "user-agent": "sessile", **headers})
    return ProviderAnswer(*await fetch_direct(request, FETCH_S, bytes_max=ANSWER_BYTES_MAX))  # the scheme was looked at


class OpenIdProvider:
    """One OpenID provider, with its metadata. `keys` keeps the provider's signing keys up to date."""

    def __init__(self, settings: ProviderSettings, metadata: Metadata, keys: JwtIssuers, send: Send) -> None:
        self.settings = settings
        self.metadata = metadata
        self.keys = keys
        self._send = send

    def authorization_url(self, *, redirect_uri: str, state: str, nonce: str, challenge: str) -> str:
        """Returns the URL that a browser is sent to for signing in."""
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self.settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        if "offline_access" in self.settings.scopes:  # OpenID Connect Core §11 demands it for that
            query["prompt"] = "consent"
        return _with_query(self.metadata.authorization_endpoint, query)

    def end_session_url(self, *, id_token: str, after: str) -> str | None:
        """Returns the URL that a browser is sent to for signing out at the provider; None if the provider has none."""
        if self.metadata.end_session_endpoint is None:
            return None
        query = {"client_id": self.settings.client_id, "post_logout_redirect_uri": after}
        return _with_query(
            self.metadata.end_session_endpoint, query | ({"id_token_hint": id_token} if id_token else {})
        )

    async def exchange(self, *, code: str, verifier: str, redirect_uri: str) -> Tokens:
        """Exchanges a code for tokens. Raises Unauthorized if the provider refuses it, Unavailable."""
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri}
        return await self._tokens({**form, "code_verifier": verifier})

    async def refresh(self, refresh_token: str) -> Tokens:
        """Fetches newer tokens. Raises Unauthorized if the provider has ended this sign-in, Unavailable."""
        return await self._tokens({"grant_type": "refresh_token", "refresh_token": refresh_token})

    async def principal_of(self, id_token: str, *, nonce: str | None) -> Principal:
        """Checks an ID token and returns its principal. `nonce` is None after a refresh, whose tokens have none. Raises
        Unauthorized, Unavailable."""
        try:
            principal, claims = self.keys.verify(id_token)
        except Unavailable:  # signed with a key that is not known here yet
            await self.keys.load()
            principal, claims = self.keys.verify(id_token)
        audience, party = claims.get("aud"), claims.get("azp")
        if (isinstance(audience, list) and len(audience) > 1 and party is None) or (
            party is not None and party != self.settings.client_id
        ):
            raise _refused("its ID token is for another application")
        if nonce is not None and not _same(claims.get("nonce"), nonce):
            raise _refused("its ID token belongs to another sign-in")
        if not isinstance(claims.get("sub"), str):
            raise _refused("its ID token names nobody")
        return principal

    def signed_out(self, logout_token: str, now_ms: UnixMs) -> tuple[str, UnixMs]:
        """Checks a logout token (Back-Channel Logout 1.0, 2.6). Returns its subject and when that person signed out.
        Raises Unauthorized, Unavailable."""
        claims = self.keys.claims_of(logout_token, types=LOGOUT_TYPES)
        events, subject, issued_at = claims.get("events"), claims.get("sub"), claims.get("iat")
        if not isinstance(events, dict) or not isinstance(events.get(LOGOUT_EVENT), dict) or "nonce" in claims:
            raise _refused("this is no logout token")
        if not isinstance(issued_at, int | float) or abs(now_ms / 1000 - issued_at) > LOGOUT_S:
            raise _refused("this logout token is not of now")
        if not isinstance(subject, str):
            raise _refused("this logout token has no `sub`, by which people are known here")
        return subject, UnixMs(min(now_ms, int(issued_at) * 1000 + 999))

    async def _tokens(self, form: dict[str, str]) -> Tokens:
        settings, headers = self.settings, {}
        form["client_id"] = settings.client_id
        if settings.client_secret and "client_secret_basic" in self.metadata.token_endpoint_auth_methods_supported:
            pair = f"{quote_plus(settings.client_id)}:{quote_plus(settings.client_secret)}"  # RFC 6749 §2.3.1
            headers["authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        elif settings.client_secret:
            form["client_secret"] = settings.client_secret
        try:
            answer = await self._send(self.metadata.token_endpoint, form, headers)
        except OSError as error:
            log.warning("sign_in_provider_unreachable", error=str(error))
            raise _away() from error
        if answer.status >= 500 or answer.status == 429:
            log.warning("sign_in_provider_failed", status=answer.status)
            raise _away()
        if answer.status != 200:
            reason = _error_of(answer.body)
            log.warning("sign_in_refused", status=answer.status, error=reason)
            if reason in ("invalid_client", "unauthorized_client"):
                raise Unavailable("sign_in_unavailable", "The provider does not know this server.", retryable=False)
            raise _refused("the provider does not accept it any more")
        try:
            if len(answer.body) > ANSWER_BYTES_MAX:
                raise ValueError("too long")
            return msgspec.json.decode(answer.body, type=Tokens)
        except (ValueError, RecursionError) as error:
            raise _refused("the provider's answer cannot be read") from error


async def discover(
    settings: ProviderSettings,
    *,
    now_ms: Callable[[], UnixMs],
    clock: Callable[[], float],
    send: Send = send,
) -> OpenIdProvider:
    """Reads a provider's metadata and keys. Raises BadInput, which says what is wrong, also if the provider does not
    answer: the server could let nobody in."""
    where = settings.issuer.rstrip("/") + "/.well-known/openid-configuration"
    check_provider(settings)
    try:
        answer = await send(where, None, {})
        if answer.status != 200 or len(answer.body) > ANSWER_BYTES_MAX:
            raise ValueError(f"it answers {answer.status} with {len(answer.body)} bytes")
        metadata = msgspec.json.decode(answer.body, type=Metadata)
    except (OSError, ValueError, RecursionError) as error:
        raise bad_setting("oidc_issuer", f"its metadata at {where} cannot be read: {error}") from error
    if metadata.issuer != settings.issuer:
        raise bad_setting(
            "oidc_issuer", f"{where} is of the issuer {metadata.issuer!r}, not {settings.issuer!r}: write it like this"
        )
    endpoints = (metadata.authorization_endpoint, metadata.token_endpoint, metadata.jwks_uri)
    for address in (*endpoints, metadata.end_session_endpoint):
        if address is not None:
            _check_address(address, "an address in its metadata")
    methods = metadata.code_challenge_methods_supported
    if methods is not None and "S256" not in methods:
        raise bad_setting("oidc_issuer", "this provider does not take PKCE with S256")
    keys = JwtIssuers([_issuer_of(settings, metadata)], now_ms=now_ms, clock=clock)
    await keys.load()
    return OpenIdProvider(settings, metadata, keys, send)


def check_provider(settings: ProviderSettings) -> None:
    """Raises BadInput for settings that contradict each other."""
    if not settings.issuer or not settings.client_id:
        raise bad_setting("oidc_client_id", "give oidc_issuer and oidc_client_id, both")
    if bool(settings.tenant) == bool(settings.tenant_claim):
        raise bad_setting("oidc_tenant", "give oidc_tenant or oidc_tenant_claim, one of the two")
    if "openid" not in settings.scopes or not settings.roles:
        name = "oidc_scopes" if settings.roles else "oidc_roles"
        raise bad_setting(name, "openid is one of the scopes, and there is one role at least")
    _check_address(settings.issuer, "the issuer")


def _issuer_of(settings: ProviderSettings, metadata: Metadata) -> JwtIssuer:
    """Returns the issuer by whose rules the provider's ID tokens are checked."""
    algorithms = tuple(each for each in get_args(Algorithm) if each in metadata.id_token_signing_alg_values_supported)
    if not algorithms:
        raise bad_setting("oidc_issuer", "this provider signs ID tokens with none of the algorithms that are safe")
    return JwtIssuer(
        issuer=settings.issuer,
        audience=settings.client_id,
        jwks=metadata.jwks_uri,
        algorithms=algorithms,
        tenant=settings.tenant,
        tenant_claim=settings.tenant_claim,
        types=("JWT",),
        user_claim=settings.user_claim,
        role_claim=settings.role_claim,
        roles=settings.roles,
        scope_claim="",
    )


def bad_setting(name: str, why: str) -> BadInput:
    return BadInput("invalid_setting", f"{name}: {why}.", param=name)


def _check_address(address: str, what: str) -> None:
    """Raises BadInput for an address that is not https (or http on this machine). `what` says in the error which
    address it is."""
    try:
        url = urlsplit(address)
        host = url.hostname or ""
    except ValueError:
        raise bad_setting("oidc_issuer", f"{what} is no address: {address!r}") from None
    if not host or (url.scheme != "https" and not (url.scheme == "http" and is_loopback(host))):
        raise bad_setting("oidc_issuer", f"{what} is not https: {address!r}")


def _with_query(address: str, query: Mapping[str, str]) -> str:
    return f"{address}{'&' if urlsplit(address).query else '?'}{urlencode(query)}"


def _same(claim: Any, nonce: str) -> bool:
    return isinstance(claim, str) and hmac.compare_digest(claim.encode(), nonce.encode())


def _error_of(body: bytes) -> str:
    """Returns the error code in an OAuth answer, shortened for the log; empty if there is none."""
    try:
        answer = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return ""
    error = answer.get("error") if isinstance(answer, dict) else None
    return error[:64] if isinstance(error, str) else ""


def _refused(why: str) -> Unauthorized:
    return Unauthorized("unauthorized", f"This sign-in is not accepted: {why}.")


def _away() -> Unavailable:
    return Unavailable("sign_in_unavailable", "The sign-in provider does not answer.", retry_after_ms=2000)
