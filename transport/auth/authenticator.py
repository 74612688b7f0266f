"""Authenticates credentials: API keys, tokens of issuers, tickets; and watches for their end.

Keys are known by their SHA-256 only: those of a configuration file, and those of the key ring
(`transport.auth.api_key_cache`). Tokens are an issuer's (`transport.auth.jwt_issuers`). With none of these configured
everyone is one local principal; then the server listens on loopback only, and only for loopback host names
(`transport.auth.origins`). What a principal may do and see is `sessions.model.authorization`' business.

A credential ends: it expires, or is revoked. `verify` says so before every command, and whatever lives longer than one
(a connection, a stream) is called back through `watch`.

Tickets stand for a principal for 30 s and one use, where a client cannot send a header (browsers, RFC 6455 has none).
Where they are kept is `transport.auth.tickets`' business.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from sessions.model.errors import SessileError, Unauthorized
from sessions.model.types import LOCAL_PRINCIPAL, Principal, UnixMs
from transport.auth.api_key_cache import ApiKeyCache, KeyListener, expired, revoked
from transport.auth.auth_throttle import AuthThrottle
from transport.auth.origins import OriginPolicy
from transport.auth.tickets import MemoryTickets, Tickets

CREDENTIAL_LENGTH_MAX: Final = 8192
TOKEN_PREFIX: Final = "jwt:"  # of the key ids of principals that an issuer vouches for

CredentialEnded = Callable[[SessileError], None]


class TokenVerifier(Protocol):
    """Tokens of issuers; `transport.auth.jwt_issuers` has them."""

    def is_jwt(self, credential: str) -> bool: ...

    def names(self, tenant: str) -> bool:
        """Whether a token may be of this tenant."""
        ...

    def known(self, credential: str) -> Principal | None:
        """The principal of a token that was checked before; None: `principal_of` checks it."""

    def principal_of(self, credential: str) -> Principal:
        """Raises Unauthorized, Unavailable."""


def key_digest(key: str) -> str:
    """How a key is written in the configuration: hex SHA-256. Keys are long random strings, so no salt is needed."""
    return hashlib.sha256(key.encode()).hexdigest()


class Authenticator(KeyListener):
    """Turns credentials into principals. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        keys: Mapping[str, Principal],
        *,
        clock: Callable[[], float],
        now_ms: Callable[[], UnixMs],
        ring: ApiKeyCache | None = None,
        tokens: TokenVerifier | None = None,
        tickets: Tickets | None = None,
        origins: OriginPolicy | None = None,
        throttle: AuthThrottle | None = None,
    ) -> None:
        """`keys` by `key_digest`. With `ring` or `tokens` credentials are required. `tickets`: those of all gateways of
        a cluster; None: this process's own."""
        self.origins = origins or OriginPolicy()
        self._keys = dict(keys)
        self._ring = ring
        self._tokens = tokens
        self._now_ms = now_ms
        self._tickets = tickets or MemoryTickets(clock)
        self._throttle = throttle or AuthThrottle(clock=clock)
        self._watched: dict[str, dict[object, CredentialEnded]] = {}  # by key id
        if ring is not None:
            ring.subscribe(self)

    @property
    def open(self) -> bool:
        """No keys are configured: everyone is the local principal."""
        return not self._keys and self._ring is None and self._tokens is None

    def names(self, tenant: str) -> bool:
        """Whether people of this tenant may come in by the configuration: by a key of the file, or by a token."""
        tokens = self._tokens is not None and self._tokens.names(tenant)
        return tokens or any(key.tenant == tenant for key in self._keys.values())

    def authenticate(self, credential: str | None, address: str | None = None, *, with_body: bool = False) -> Principal:
        """The principal of a credential that came from `address`. Raises Unauthorized, which does not say whether a key
        exists; Limited where this address has been wrong too often; Unavailable where nothing can be checked.

        A body without any credential counts as a wrong key: an empty question (a page that looks whether it needs
        one) does not."""
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
                    self._throttle.check(address)  # a signature costs a hundred times what a key does
                    principal = self._tokens.principal_of(credential)
                return principal
        raise Unauthorized("unauthorized", "This key is not known here.")

    def verify(self, principal: Principal) -> None:
        """Raises Unauthorized when the credential behind a principal has ended since, Unavailable when that cannot be
        known."""
        if principal.expires_at is not None and principal.expires_at <= self._now_ms():
            raise _ended(principal)
        if self._ring is not None and (key := self._ring.find(principal.key_id)) is not None:
            if key.revoked_at is not None:
                raise revoked()
            self._ring.check_fresh()

    def watch(self, principal: Principal, ended: CredentialEnded) -> Callable[[], None]:
        """Has `ended` called (a plain function, at most once) when the principal's credential ends. What is returned
        takes that back. Raises what `verify` raises."""
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
        watched[token] = ended
        return unwatch

    def key_ended(self, key_id: str, error: SessileError) -> None:
        """Implements `KeyListener`."""
        watched = self._watched.pop(key_id, {})
        callbacks = list(watched.values())
        watched.clear()
        for ended in callbacks:
            ended(error)

    def keys_stale(self, error: SessileError) -> None:
        """Implements `KeyListener`: nobody is let in by a key that cannot be checked."""
        assert self._ring is not None
        for key_id in list(self._watched):
            if self._ring.find(key_id) is not None:
                self.key_ended(key_id, error)

    # -- tickets ----------------------------------------------------------------------------------------------------

    async def issue_ticket(self, principal: Principal) -> str:
        """A ticket for one connection within `TICKET_S`. Raises Limited when too many are open, Unavailable."""
        ticket = "tkt_" + secrets.token_urlsafe(24)
        await self._tickets.put(key_digest(ticket), principal)
        return ticket

    async def redeem_ticket(self, ticket: str, address: str | None = None) -> Principal:
        """The ticket's principal; the ticket is used up. Raises Unauthorized, Limited, and Unavailable where it cannot
        be looked up."""
        principal = await self._tickets.take(key_digest(ticket))
        if principal is None:
            self._throttle.failed(address)
            raise Unauthorized("unauthorized", "This ticket is unknown, used or too old: request another.")
        self.verify(principal)
        return principal

    def check_host(self, host: str | None) -> None:
        """Raises Forbidden for a Host header under which a server without keys must not answer."""
        if self.open:
            self.origins.check_host(host)


def _ended(principal: Principal) -> Unauthorized:
    """A token's holder fetches another and comes back; a key's does not."""
    if principal.key_id.startswith(TOKEN_PREFIX):
        return Unauthorized("token_expired", "This token has expired.")
    return expired()


def _no_unwatch() -> None:
    """What takes back a watch where nothing ever ends."""
