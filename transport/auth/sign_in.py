"""Signs people in through an OpenID provider, and knows them again by a sealed cookie.

    begin     a state, a nonce and a PKCE verifier go into a sealed cookie; the browser goes to the provider
    complete  it comes back: state and issuer are compared, the code becomes tokens, the ID token a principal
    refresh   a newer session of the same person, by the provider's refresh token
    end       the cookies are taken away; the caller revokes the session, whose id every gateway learns

Four cookies, each sealed and HttpOnly, so that no token and no session ever reaches a script: `session` goes with every
request of our own pages, `refresh` and `hint` (the ID token, for signing out there) with those to `/auth` only, and
`begin` lives between two redirects. All are SameSite=Strict but the last, which has to come back from another site.

Whoever answers by cookie calls `check_page` first: a cookie proves who the browser is, not who wrote the page. Does not
know doors, nor what was revoked (`transport.auth.authenticator`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from sessions.model.api_keys import USUAL_SCOPES
from sessions.model.errors import BadInput, Forbidden, Unauthorized
from sessions.model.revocations import Revocation
from sessions.model.types import Authority, Principal, TenantId, TokenRef, UnixMs
from transport.addresses import is_loopback
from transport.auth.authenticator import TOKEN_PREFIX
from transport.auth.openid_provider import OpenIdProvider, Tokens, bad_setting
from transport.auth.origins import CSRF_HEADER
from transport.auth.sealed_cookies import CookieSealer, SameSite, read_cookie, set_cookie

T = TypeVar("T")
BEGIN_S: Final = 600  # from the first redirect to the second
NEXT_LENGTH_MAX: Final = 512


class SignInBegun(msgspec.Struct, frozen=True, array_like=True):
    state: str
    nonce: str
    verifier: str
    next: str
    at: UnixMs


class SignInSession(msgspec.Struct, frozen=True, array_like=True):
    id: str
    tenant: TenantId
    user: str
    role: Authority
    subject: str
    signed_in_at: UnixMs
    expires_at: UnixMs


class SignInRefresh(msgspec.Struct, frozen=True, array_like=True):
    session: SignInSession
    token: str


class SignInHint(msgspec.Struct, frozen=True, array_like=True):
    id_token: str


class SignedIn(NamedTuple):
    principal: Principal
    cookies: list[str]  # Set-Cookie headers
    next: str = "/"


class PublicUrl:
    """The address of this server for browsers, from its settings: requests do not decide where browsers are sent."""

    def __init__(self, written: str) -> None:
        """Raises BadInput for an address that is not https (or http on this machine), or has a query."""
        try:
            url = urlsplit(written)
            host, port = url.hostname or "", url.port
        except ValueError as error:
            raise bad_setting("public_url", f"{written!r} is no address: {error}") from error
        if not written:
            raise bad_setting("public_url", "signing in needs the address that browsers use, https://HOST")
        if not host or url.query or url.fragment or url.username is not None:
            raise bad_setting("public_url", f"{written!r}: https://HOST or https://HOST/PATH is expected")
        if url.scheme != "https" and not (url.scheme == "http" and is_loopback(host)):
            raise bad_setting("public_url", f"{written!r} is not https: sign-ins could be taken over on the way")
        usual = {"https": 443, "http": 80}[url.scheme]
        name = f"[{host}]" if ":" in host else host
        self.secure = url.scheme == "https"
        self.origin = f"{url.scheme}://{name}" + ("" if port in (None, usual) else f":{port}")
        self.path = url.path.rstrip("/")

    def at(self, path: str) -> str:
        return f"{self.origin}{self.path}{path}"


class SignIn:
    """The sign-in flow. `session_s` is how long a person stays signed in at most, however often that is refreshed."""

    def __init__(
        self,
        provider: OpenIdProvider,
        sealer: CookieSealer,
        public_url: PublicUrl,
        *,
        session_s: float,
        now_ms: Callable[[], UnixMs],
    ) -> None:
        self.provider = provider
        self.public_url = public_url
        self._sealer = sealer
        self._session_s = session_s
        self._now_ms = now_ms

    # -- the flow -----------------------------------------------------------------------------------------------------

    def begin(self, next_path: str) -> tuple[str, str]:
        """Begins a sign-in, after which the browser goes to `next_path`. Returns the provider's URL and a Set-Cookie
        header. Raises BadInput if `next_path` is not a path on this server."""
        check_next(next_path)
        verifier = secrets.token_urlsafe(48)
        begun = SignInBegun(secrets.token_urlsafe(24), secrets.token_urlsafe(24), verifier, next_path, self._now_ms())
        url = self.provider.authorization_url(
            redirect_uri=self._redirect_uri, state=begun.state, nonce=begun.nonce, challenge=challenge_of(verifier)
        )
        return url, self._set("begin", begun, BEGIN_S)

    async def complete(self, query: Mapping[str, str], cookies: Iterable[str]) -> SignedIn:
        """Completes a sign-in when the browser returns. Raises BadInput if it was not begun here, Unauthorized,
        Unavailable."""
        begun = self._open("begin", cookies, SignInBegun)
        now = self._now_ms()
        if begun is None or now - begun.at > BEGIN_S * 1000:
            raise BadInput("invalid_request", "This sign-in was not begun in this browser, or too long ago.")
        if not hmac.compare_digest(begun.state.encode(), query.get("state", "").encode()):
            raise BadInput("invalid_request", "This answer belongs to another sign-in.", param="state")
        issuer, provider = query.get("iss"), self.provider
        demanded = provider.metadata.authorization_response_iss_parameter_supported
        if (issuer is not None or demanded) and issuer != provider.settings.issuer:  # RFC 9207
            raise BadInput("invalid_request", "This answer is another provider's.", param="iss")
        if "error" in query:
            raise Unauthorized("unauthorized", f"The provider refuses: {_word(query['error'])}.")
        code = query.get("code", "")
        if not code:
            raise BadInput("invalid_request", "This answer has no code.", param="code")
        tokens = await provider.exchange(code=code, verifier=begun.verifier, redirect_uri=self._redirect_uri)
        if tokens.id_token is None:
            raise Unauthorized("unauthorized", "This sign-in is not accepted: the provider sent no ID token.")
        principal = await provider.principal_of(tokens.id_token, nonce=begun.nonce)
        session = self._session(principal, tokens, secrets.token_urlsafe(18), self._now_ms())
        cookies_set = [*self._keep(session, tokens), self._take_away("begin")]
        return SignedIn(self.principal(session), cookies_set, begun.next)

    async def refresh(self, cookies: Iterable[str], verify: Callable[[Principal], None]) -> SignedIn:
        """Renews a person's session. `verify` raises if it was revoked. Raises Unauthorized, Unavailable."""
        kept = self._open("refresh", cookies, SignInRefresh)
        if kept is None or self._ends_at(kept.session) <= self._now_ms():
            raise Unauthorized("unauthorized", "This sign-in cannot be renewed: sign in again.")
        old = kept.session
        verify(msgspec.structs.replace(self.principal(old), expires_at=None))
        tokens = await self.provider.refresh(kept.token)
        if tokens.id_token is None:
            principal = self.principal(old)
            tokens = msgspec.structs.replace(tokens, expires_in=tokens.expires_in or 0)
        else:
            principal = await self.provider.principal_of(tokens.id_token, nonce=None)
            if principal.token is None or principal.token.subject != old.subject:
                raise Unauthorized("unauthorized", "This sign-in is not accepted: it became another person's.")
        session = self._session(principal, tokens, old.id, old.signed_in_at)
        if tokens.refresh_token is None:
            tokens = msgspec.structs.replace(tokens, refresh_token=kept.token)
        return SignedIn(self.principal(session), self._keep(session, tokens))

    def end(self, cookies: Iterable[str]) -> tuple[Principal | None, list[str]]:
        """Signs a person out. Returns the principal of the session that ends (None without a valid cookie) and the
        Set-Cookie headers that delete its cookies. The principal's `expires_at` is the latest time to which the session
        could have been renewed. The `hint` cookie stays for `end_session_url`."""
        headers = list(cookies)
        kept = self._open("refresh", headers, SignInRefresh)
        session = self._open("session", headers, SignInSession) or (None if kept is None else kept.session)
        taken = [self._take_away(name) for name in ("session", "refresh", "begin")]
        if session is None:
            return None, taken
        return msgspec.structs.replace(self.principal(session), expires_at=self._ends_at(session)), taken

    def ended_at_provider(self, logout_token: str) -> Revocation:
        """Checks the provider's logout token. Returns the revocation of everything issued about its subject until then.
        Raises Unauthorized, Unavailable."""
        now = self._now_ms()
        subject, at = self.provider.signed_out(logout_token, now)
        until = UnixMs(now + round(self._session_s * 1000))
        return Revocation(issuer=self.provider.settings.issuer, kind="subject", name=subject, at=at, expires_at=until)

    def end_session_url(self, cookies: Iterable[str]) -> tuple[str, str]:
        """Returns where the browser goes after signing out here (the provider's sign-out, or our page), and a header
        that deletes the `hint` cookie."""
        hint = self._open("hint", cookies, SignInHint)
        page = self.public_url.at("/")
        url = None if hint is None else self.provider.end_session_url(id_token=hint.id_token, after=page)
        return url or page, self._take_away("hint")

    # -- knowing somebody again ---------------------------------------------------------------------------------------

    def check_page(self, *, origin: str | None, site: str | None, header: str | None) -> None:
        """Raises Forbidden unless a page of ours sent a request that changes something. `site` is Sec-Fetch-Site."""
        if not self.is_own_page(origin, site):
            raise Forbidden("forbidden", "With a cookie only this server's own pages may do that.")
        if not header:
            raise Forbidden("forbidden", f"With a cookie this needs the header {CSRF_HEADER}.")

    def is_own_page(self, origin: str | None, site: str | None = None) -> bool:
        """Returns whether a browser says that a page of ours sent a request. Without Origin it was no page."""
        return origin is not None and origin.lower() == self.public_url.origin and site in (None, "same-origin")

    def may_read(self, origin: str | None, site: str | None) -> bool:
        """Returns whether a request that reads by cookie is from a page of ours or a person who opened a link: neither
        has another page's origin, and other pages of the site send `same-site`."""
        return site in (None, "same-origin", "none") and (origin is None or self.is_own_page(origin))

    def session_cookie(self, cookies: Iterable[str]) -> str | None:
        """Returns a session cookie's value; None if there is none, "" if there are several."""
        return read_cookie(cookies, self._name("session"))

    def session_of(self, written: str) -> Principal:
        """Returns the principal of a session cookie. Raises Unauthorized if we did not seal it or it has expired."""
        session = self._sealer.open("session", written, SignInSession)
        if session is None:
            raise Unauthorized("unauthorized", "This sign-in is not known here: sign in again.")
        if session.expires_at <= self._now_ms():
            raise Unauthorized("token_expired", "This sign-in has expired.")
        return self.principal(session)

    def can_refresh(self, cookies: Iterable[str]) -> bool:
        kept = self._open("refresh", cookies, SignInRefresh)
        return kept is not None and self._ends_at(kept.session) > self._now_ms()

    def principal(self, session: SignInSession) -> Principal:
        issuer = self.provider.settings.issuer
        return Principal(
            tenant=session.tenant,
            key_id=TOKEN_PREFIX + issuer,
            user=session.user,
            role=session.role,
            scopes=USUAL_SCOPES[session.role],
            expires_at=session.expires_at,
            token=TokenRef(issuer, session.subject, session.id, session.signed_in_at),
        )

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def _redirect_uri(self) -> str:
        return self.public_url.at("/auth/callback")

    def _session(self, principal: Principal, tokens: Tokens, session_id: str, signed_in_at: UnixMs) -> SignInSession:
        """Returns a session that expires with the tokens, and at the latest `session_s` after the sign-in."""
        now, user, token = self._now_ms(), principal.user, principal.token
        assert user is not None and token is not None
        ends = principal.expires_at or now
        if tokens.expires_in is not None:
            ends = UnixMs(now + int(tokens.expires_in * 1000))
        at_the_latest = signed_in_at + round(self._session_s * 1000)
        return SignInSession(
            session_id,
            principal.tenant,
            user,
            principal.role,
            token.subject,
            signed_in_at,
            UnixMs(min(ends, at_the_latest)),
        )

    def _ends_at(self, session: SignInSession) -> UnixMs:
        return UnixMs(session.signed_in_at + round(self._session_s * 1000))

    def _keep(self, session: SignInSession, tokens: Tokens) -> list[str]:
        """Returns the Set-Cookie headers of a session. A token that is too long for a cookie is left out: without a
        refresh token the session cannot be renewed, without an ID token the provider asks who signs out."""
        left_s = max(0, (self._ends_at(session) - self._now_ms()) // 1000)
        kept = [self._set("session", session, max(0, (session.expires_at - self._now_ms()) // 1000))]
        if tokens.refresh_token is not None:
            kept.append(self._set("refresh", SignInRefresh(session, tokens.refresh_token), left_s))
        if tokens.id_token is not None:
            kept.append(self._set("hint", SignInHint(tokens.id_token), left_s))
        return kept

    def _name(self, name: str) -> str:
        if not self.public_url.secure:
            return f"sessile-{name}"
        return ("__Secure-" if name in ("refresh", "hint") else "__Host-") + f"sessile-{name}"

    def _path(self, name: str) -> str:
        return self.public_url.path + "/auth" if name in ("refresh", "hint") else "/"

    def _set(self, name: str, content: msgspec.Struct, max_age_s: int) -> str:
        written = self._sealer.seal(name, content)
        if written is None:
            return self._take_away(name)
        return self._written(name, written, max_age_s)

    def _take_away(self, name: str) -> str:
        return self._written(name, "", 0)

    def _written(self, name: str, value: str, max_age_s: int) -> str:
        same_site: SameSite = "Lax" if name == "begin" else "Strict"
        where = self._path(name)
        return set_cookie(
            self._name(name), value, path=where, secure=self.public_url.secure, same_site=same_site, max_age_s=max_age_s
        )

    def _open(self, name: str, cookies: Iterable[str], kind: type[T]) -> T | None:
        written = read_cookie(cookies, self._name(name))
        return None if not written else self._sealer.open(name, written, kind)


def check_next(path: str) -> None:
    """Raises BadInput for anything but a path on this server, so that nobody is sent elsewhere after signing in."""
    try:
        url = urlsplit(path)
        here = path.startswith("/") and not path.startswith("//") and not url.scheme and not url.netloc
    except ValueError:
        here = False
    if not here or len(path) > NEXT_LENGTH_MAX or not path.isascii() or not path.isprintable() or "\\" in path:
        raise BadInput("invalid_request", "next: a path on this server is expected, like /operator.", param="next")


def challenge_of(verifier: str) -> str:
    """Returns the code challenge of a verifier (RFC 7636, S256)."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")


def _word(error: str) -> str:
    """Returns OAuth's error code if it looks like one, else "unknown error"."""
    return error if len(error) <= 64 and error.replace("_", "").isalnum() and error.isascii() else "unknown error"
