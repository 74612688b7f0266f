"""Authenticates credentials: API keys, tokens of issuers, sign-ins, tickets; and watches for their end.

Keys are known by their SHA-256 only: those of a configuration file, and those of the key ring
(`transport.auth.api_key_cache`). Tokens are an issuer's (`transport.auth.jwt_issuers`), cookies those of people who
signed in with a browser (`transport.auth.sign_in`), at HTTP doors only. With none of these configured everyone is one
local principal; then the server listens on loopback only, and only for loopback host names (`transport.auth.origins`).
What a principal may do and see is `sessions.model.authorization`' business.

A credential ends: it expires, or is revoked. `verify` says so before every command, and whatever lives longer than one
(a connection, a stream) is called back through `watch`.

Tickets stand for a principal for 30 s and one use, where a client cannot send a header (browsers, RFC 6455 has none).
Where they are kept is `transport.auth.tickets`' business.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from sessions.model.audit import INSTALLATION, Audited
from sessions.model.errors import SessileError, Unauthorized, Unavailable
from sessions.model.revocations import KEPT_MS, Revocation, RevocationKind, revocation_audit
from sessions.model.types import LOCAL_PRINCIPAL, Principal, TokenRef, UnixMs
from transport.auth.api_key_cache import ApiKeyCache, KeyListener, expired, revoked
from transport.auth.auth_throttle import AuthThrottle
from transport.auth.origins import OriginPolicy
from transport.auth.revocation_cache import RevocationCache, token_revoked
from transport.auth.tickets import MemoryTickets, Tickets

CREDENTIAL_LENGTH_MAX: Final = 8192
TOKEN_PREFIX: Final = "jwt:"  # begins the key ids of principals that come from an issuer's token

CredentialEnded = Callable[[SessileError], None]


class TokenVerifier(Protocol):
    """Checks tokens of issuers; `transport.auth.jwt_issuers` implements it."""

    def is_jwt(self, credential: str) -> bool: ...

    def names(self, tenant: str) -> bool:
        """Returns whether an issuer may give tokens for this tenant."""
        ...

    def known(self, credential: str) -> Principal | None:
        """Returns the principal of a token that was checked before; None if `principal_of` must check it."""

    def principal_of(self, credential: str) -> Principal:
        """Checks a token and returns its principal. Raises Unauthorized, Unavailable."""


class SignedInCookies(Protocol):
    """Checks session cookies of people who signed in; `transport.auth.sign_in` implements it."""

    def session_cookie(self, cookies: Iterable[str]) -> str | None:
        """Returns the session's value in a request's Cookie headers; None if there is none."""

    def session_of(self, written: str) -> Principal:
        """Returns the principal of a session cookie. Raises Unauthorized."""
        ...

    def is_own_page(self, origin: str | None, site: str | None = None) -> bool:
        """Returns whether a browser says that a page of ours sent a request."""
        ...

    def may_read(self, origin: str | None, site: str | None) -> bool:
        """Returns whether a request that reads by cookie comes from a page of ours, or from a person who typed or
        followed an address. `origin` and `site` are the headers Origin and Sec-Fetch-Site."""
        ...

    def check_page(self, *, origin: str | None, site: str | None, header: str | None) -> None:
        """Raises Forbidden unless a page of ours sent a request that changes something."""


class Issuance(NamedTuple):
    """The credentials besides keys: tokens of issuers, sign-ins, and the list of revoked ones."""

    tokens: TokenVerifier | None = None
    sign_in: SignedInCookies | None = None
    revocations: RevocationCache | None = None
    issuers: tuple[str, ...] = ()  # the issuers whose tokens and sign-ins can be revoked


NOTHING_ISSUED: Final = Issuance()


def key_digest(key: str) -> str:
    """Returns a key as the configuration has it: hex SHA-256. Keys are long random strings, so no salt is needed."""
    return hashlib.sha256(key.encode()).hexdigest()


class Authenticator(KeyListener):
    """Checks credentials and returns their principals. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        keys: Mapping[str, Principal],
        *,
        clock: Callable[[], float],
        now_ms: Callable[[], UnixMs],
        ring: ApiKeyCache | None = None,
        issued: Issuance = NOTHING_ISSUED,
        tickets: Tickets | None = None,
        origins: OriginPolicy | None = None,
        throttle: AuthThrottle | None = None,
    ) -> None:
        """`keys` has the principal of each configured key by the key's digest (`key_digest`). With any of `keys`,
        `ring`, tokens or sign-ins, credentials are required. `tickets` are shared by a cluster's gateways; None: this
        process has its own."""
        self.origins = origins or OriginPolicy()
        self._keys = dict(keys)
        self._ring = ring
        self._tokens = issued.tokens
        self.sign_in: Final = issued.sign_in
        self.revocations: Final = issued.revocations
        self.issuers: Final = issued.issuers
        self._now_ms = now_ms
        self._tickets = tickets or MemoryTickets(clock)
        self._throttle = throttle or AuthThrottle(clock=clock)
        # Each kind of failure is counted by itself: wrong keys lock nobody out of signing in.
        self._signatures = AuthThrottle(clock=clock, limits=self._throttle.limits)
        self.sign_ins = AuthThrottle(clock=clock, limits=self._throttle.limits)
        self.logouts = AuthThrottle(clock=clock, limits=self._throttle.limits)
        self._watched: dict[str, dict[object, tuple[Principal, CredentialEnded]]] = {}  # by key id
        if ring is not None:
            ring.subscribe(self)
        if self.revocations is not None:
            self.revocations.subscribe(self._revocations_changed)

    @property
    def open(self) -> bool:
        """Whether no credentials are needed: everyone is the local principal."""
        return not self.takes_keys and self.sign_in is None

    @property
    def takes_keys(self) -> bool:
        """Whether keys or tokens are accepted, and not only sign-ins."""
        return bool(self._keys) or self._ring is not None or self._tokens is not None

    def names(self, tenant: str) -> bool:
        """Returns whether a key of the configuration or an issuer's token can be of this tenant."""
        tokens = self._tokens is not None and self._tokens.names(tenant)
        return tokens or any(key.tenant == tenant for key in self._keys.values())

    def authenticate(self, credential: str | None, address: str | None = None, *, with_body: bool = False) -> Principal:
        """Returns the principal of a credential sent from `address`. Raises Unauthorized, which does not say whether
        a key exists; Limited if this address had too many failures; Unavailable if nothing can be checked.

        A request without any credential counts as a failure only `with_body`: pages send empty ones to see whether
        they need a key."""
        if self.open:
            return LOCAL_PRINCIPAL
        if credential is None:
            if with_body:
                self._throttle.failed(address)
            raise Unauthorized("unauthorized", "A key is needed: send it as a Bearer token or in hello.")
        try:
            return self._principal_of(credential, address)
        except Unauthorized:
            self._throttle.failed(address)
            raise

    def _principal_of(self, credential: str, address: str | None) -> Principal:
        if len(credential) <= CREDENTIAL_LENGTH_MAX:
            # A look-up by digest: its timing shows something of the digest, and nothing of the key.
            principal = self._keys.get(key_digest(credential))
            if principal is not None:
                self.verify(principal)
                return principal
            if self._ring is not None and self._ring.is_api_key(credential):
                return self._ring.principal_of(credential)
            if self._tokens is not None and self._tokens.is_jwt(credential):
                principal = self._tokens.known(credential)
                if principal is None:
                    self._signatures.check(address)  # a signature costs a hundred times what a key does
                    try:
                        principal = self._tokens.principal_of(credential)
                    except Unauthorized:
                        self._signatures.failed(address)
                        raise
                if self.revocations is not None and principal.token is not None:
                    self.revocations.check(principal.token)
                return principal
        raise Unauthorized("unauthorized", "This key is not known here.")

    def authenticate_cookie(self, written: str, address: str | None = None) -> Principal:
        """Returns the principal of a session cookie that a page of ours sent. Raises Unauthorized, Limited,
        Unavailable."""
        assert self.sign_in is not None
        try:
            principal = self.sign_in.session_of(written)
            self.verify(principal)
        except Unauthorized as error:
            if error.code != "token_expired":
                self._throttle.failed(address)
            raise
        return principal

    async def end_session(self, principal: Principal, audit: Audited) -> None:
        """Revokes the session of a person who signs out, until it would have ended. Does nothing if it is revoked. If
        there are very many revocations, it revokes all of the person's sessions at once: that takes one row per
        person, and leaves room for revocations by operators. Raises Limited, Unavailable."""
        assert self.revocations is not None and principal.token is not None
        now, token = self._now_ms(), principal.token
        try:
            self.revocations.check(token)
        except Unauthorized:
            return
        until = principal.expires_at or UnixMs(now + KEPT_MS)
        kind: RevocationKind = "subject" if self.revocations.crowded else "token"
        name = token.subject if kind == "subject" else token.id
        ended = Revocation(issuer=token.issuer, kind=kind, name=name, at=now, expires_at=until)
        await self.revocations.add(ended, audit, principal.tenant)

    async def end_subject(self, revocation: Revocation) -> None:
        """Revokes everything issued about a person who signed out at the provider. Does nothing if that is done.
        Raises Limited, Unavailable."""
        assert self.revocations is not None
        try:
            self.revocations.check(TokenRef(revocation.issuer, revocation.name, "", revocation.at))
        except Unauthorized:
            return
        await self.revocations.add(revocation, revocation_audit(revocation, None), INSTALLATION)

    def verify(self, principal: Principal) -> None:
        """Raises Unauthorized if a principal's credential has ended since it was checked, Unavailable if that cannot be
        known."""
        if principal.expires_at is not None and principal.expires_at <= self._now_ms():
            raise _ended(principal)
        if self._ring is not None and (key := self._ring.find(principal.key_id)) is not None:
            if key.revoked_at is not None:
                raise revoked()
            self._ring.check_fresh()
        if principal.token is not None and self.revocations is not None:
            self.revocations.check(principal.token)

    def watch(self, principal: Principal, ended: CredentialEnded) -> Callable[[], None]:
        """Calls `ended` (a plain function, at most once) when the principal's credential ends. Returns a function that
        stops this. Raises as `verify` does."""
        if self.open:
            return _no_unwatch
        self.verify(principal)
        token = object()
        watched = self._watched.setdefault(principal.key_id, {})
        timer: asyncio.TimerHandle | None = None

        def unwatch() -> None:
            if timer is not None:
                timer.cancel()
            if watched.pop(token, None) is not None and not watched:
                del self._watched[principal.key_id]

        def expire() -> None:
            if token in watched:
                unwatch()
                ended(_ended(principal))

        if principal.expires_at is not None:
            left_s = (principal.expires_at - self._now_ms()) / 1000
            timer = asyncio.get_running_loop().call_later(left_s, expire)
        watched[token] = (principal, ended)
        return unwatch

    def key_ended(self, key_id: str, error: SessileError) -> None:
        """Implements `KeyListener`: ends everything that this key opened."""
        watched = self._watched.pop(key_id, {})
        callbacks = list(watched.values())
        watched.clear()
        for _, ended in callbacks:
            ended(error)

    def keys_stale(self, error: SessileError) -> None:
        """Implements `KeyListener`: ends everything that any key opened, as none can be checked."""
        assert self._ring is not None
        for key_id in list(self._watched):
            if self._ring.find(key_id) is not None:
                self.key_ended(key_id, error)

    def _revocations_changed(self, revocation: Revocation | None) -> None:
        """Ends everything that a revoked token opened; with None, everything that any token opened."""
        stale = Unavailable("keys_unavailable", "Tokens cannot be checked at the moment.", retry_after_ms=1000)
        for watched in list(self._watched.values()):
            for name, (principal, ended) in list(watched.items()):
                covered = principal.token is not None and (revocation is None or revocation.covers(principal.token))
                if covered and watched.pop(name, None) is not None:
                    ended(stale if revocation is None else token_revoked())
        self._watched = {key_id: watched for key_id, watched in self._watched.items() if watched}

    # -- tickets ----------------------------------------------------------------------------------------------------

    async def issue_ticket(self, principal: Principal) -> str:
        """Makes a ticket for one connection within `TICKET_S`. Raises Limited if too many are open, Unavailable."""
        ticket = "tkt_" + secrets.token_urlsafe(24)
        await self._tickets.put(key_digest(ticket), principal)
        return ticket

    async def redeem_ticket(self, ticket: str, address: str | None = None) -> Principal:
        """Returns the principal of a ticket, which is then used up. Raises Unauthorized, Limited, Unavailable."""
        principal = await self._tickets.take(key_digest(ticket))
        if principal is None:
            self._throttle.failed(address)
            raise Unauthorized("unauthorized", "This ticket is unknown, used or too old: request another.")
        self.verify(principal)
        return principal

    def check_host(self, host: str | None) -> None:
        """Raises Forbidden if a server without keys must not answer under this Host header."""
        if self.open:
            self.origins.check_host(host)


def _ended(principal: Principal) -> Unauthorized:
    """Returns the error for an expired credential. For a token it tells clients to fetch another one."""
    if principal.key_id.startswith(TOKEN_PREFIX):
        return Unauthorized("token_expired", "This token has expired.")
    return expired()


def _no_unwatch() -> None:
    """Does nothing: without keys nothing is watched."""
