"""Who may come in: keys, tokens, tickets, and which web pages and host names may be used.

Keys are known by their SHA-256 only: those of a configuration file, and those of the key ring
(`transport.auth.api_key_cache`). Tokens are an issuer's (`transport.auth.jwt_issuers`). With none of these configured
everyone is one local principal; then the server listens on loopback only, and only for loopback host names, so that a
page of somebody else's cannot reach it through a name that it points at this machine (DNS rebinding). What a principal
may do and see is `sessions.model.authorization`' business.

A credential ends: it expires, or is revoked. `verify` says so before every command, and whatever lives longer than one
(a connection, a stream) asks by `watch` to be told.

Tickets stand for a principal for 30 s and one use, where a client cannot send a header (browsers, RFC 6455 has none).
Where they are kept is `transport.auth.tickets`' business.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol
from urllib.parse import SplitResult, urlsplit

from sessions.model.errors import Forbidden, SessileError, Unauthorized
from sessions.model.types import LOCAL_PRINCIPAL, Principal, UnixMs
from transport.auth.api_key_cache import ApiKeyCache, expired, revoked
from transport.auth.auth_throttle import AuthThrottle
from transport.auth.tickets import MemoryTickets, Tickets

CREDENTIAL_LENGTH_MAX: Final = 8192
TOKEN_PREFIX: Final = "jwt:"  # of the key ids of principals that an issuer vouches for

Ended = Callable[[SessileError], None]


class TokenVerifier(Protocol):
    """Tokens of issuers; `transport.auth.jwt_issuers` has them."""

    def is_jwt(self, credential: str) -> bool: ...

    def known(self, credential: str) -> Principal | None:
        """The principal of a token that was checked before; None: `principal_of` has to be asked."""
        ...

    def principal_of(self, credential: str) -> Principal:
        """Raises Unauthorized, Unavailable."""
        ...


def wall_ms() -> UnixMs:
    return UnixMs(time.time_ns() // 1_000_000)


def key_digest(key: str) -> str:
    """How a key is written in the configuration: hex SHA-256. Keys are long random strings, so no salt is needed."""
    return hashlib.sha256(key.encode()).hexdigest()


class Authenticator:
    """Turns credentials into principals. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        keys: Mapping[str, Principal],
        *,
        clock: Callable[[], float],
        origins: Iterable[str] = (),
        hosts: Iterable[str] = (),
        ring: ApiKeyCache | None = None,
        tokens: TokenVerifier | None = None,
        now_ms: Callable[[], UnixMs] = wall_ms,
    ) -> None:
        """`keys` by `key_digest`; `origins` as browsers write them ("https://chat.example"), "*" for every one. `ring`
        and `tokens` are demanded where they are given."""
        self._keys = dict(keys)
        self._ring = ring
        self._issued = tokens
        self._now_ms = now_ms
        self.strangers = AuthThrottle(clock=clock)
        self._watched: dict[str, dict[object, Ended]] = {}  # by key id
        if ring is not None:
            ring.ended = self._end
            ring.stale = self._end_cached_keys
        self._origins = {origin.rstrip("/").lower() for origin in origins}
        self._hosts = {host.lower() for host in hosts}
        self.tickets: Tickets = MemoryTickets(clock)  # or those of all gateways of a cluster

    @property
    def origins(self) -> tuple[str, ...]:
        """The pages of others that may use this server from a browser."""
        return tuple(sorted(self._origins))

    @property
    def open(self) -> bool:
        """No keys are configured: everyone is the local principal."""
        return not self._keys and self._ring is None and self._issued is None

    def authenticate(self, credential: str | None, address: str | None = None) -> Principal:
        """The principal of a credential that came from `address`. Raises Unauthorized, which does not say whether a key
        exists; Limited where this address has been wrong too often; Unavailable where nothing can be checked."""
        if self.open:
            return LOCAL_PRINCIPAL
        if credential is None:
            raise Unauthorized("unauthorized", "A key is needed: send it as a Bearer token or in hello.")
        try:
            return self._principal_of(credential, address)
        except Unauthorized:
            self.strangers.failed(address)
            raise

    def _principal_of(self, credential: str, address: str | None) -> Principal:
        if len(credential) <= CREDENTIAL_LENGTH_MAX:
            # A look-up by digest: what its timing tells is about the digest, which says nothing of the key.
            principal = self._keys.get(key_digest(credential))
            if principal is not None:
                self.verify(principal)
                return principal
            if self._ring is not None and self._ring.is_api_key(credential):
                return self._ring.principal_of(credential)
            if self._issued is not None and self._issued.is_jwt(credential):
                principal = self._issued.known(credential)
                if principal is None:
                    self.strangers.check(address)  # a signature costs a hundred times what a key does
                    principal = self._issued.principal_of(credential)
                return principal
        raise Unauthorized("unauthorized", "This key is not known here.")

    def verify(self, principal: Principal) -> None:
        """Raises Unauthorized when the credential behind a principal has ended since, Unavailable when that cannot be
        told."""
        if principal.expires_at is not None and principal.expires_at <= self._now_ms():
            raise _ended(principal)
        if self._ring is not None and (key := self._ring.find(principal.key_id)) is not None:
            if key.revoked_at is not None:
                raise revoked()
            self._ring.check_fresh()

    def watch(self, principal: Principal, ended: Ended) -> Callable[[], None]:
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

    def _end(self, key_id: str, error: SessileError) -> None:
        watched = self._watched.pop(key_id, {})
        told = list(watched.values())
        watched.clear()
        for ended in told:
            ended(error)

    def _end_cached_keys(self, error: SessileError) -> None:
        assert self._ring is not None
        for key_id in list(self._watched):
            if self._ring.find(key_id) is not None:
                self._end(key_id, error)

    # -- tickets ----------------------------------------------------------------------------------------------------

    async def issue_ticket(self, principal: Principal) -> str:
        """A ticket for one connection within `TICKET_S`. Raises Limited when too many are open, Unavailable."""
        ticket = "tkt_" + secrets.token_urlsafe(24)
        await self.tickets.put(key_digest(ticket), principal)
        return ticket

    async def redeem_ticket(self, ticket: str, address: str | None = None) -> Principal:
        """The ticket's principal; the ticket is used up. Raises Unauthorized, Limited, and Unavailable where it cannot
        be told whose it is."""
        principal = await self.tickets.take(key_digest(ticket))
        if principal is None:
            self.strangers.failed(address)
            raise Unauthorized("unauthorized", "This ticket is unknown, used or too old: ask for another.")
        self.verify(principal)
        return principal

    # -- where a request comes from ---------------------------------------------------------------------------------

    def check_host(self, host: str | None) -> None:
        """Raises Forbidden for a Host header under which an open server must not answer."""
        if not self.open:
            return
        name = _split(f"//{host}").hostname if host and "/" not in host else None
        if name is None or not (is_loopback(name) or name in self._hosts):
            raise Forbidden("forbidden", "Without keys this server answers on loopback names only.")

    def check_origin(self, origin: str | None, host: str | None) -> None:
        """Raises Forbidden for a page of another site that is not on the list. Programs send no Origin."""
        if origin is None or "*" in self._origins or origin.lower() in self._origins:
            return
        parts = _split(origin.lower())
        if host is not None and parts.scheme in ("http", "https") and parts.netloc == host.lower():
            return
        raise Forbidden("forbidden", "Pages of this origin may not connect; it is not on the allow-list.")


def _ended(principal: Principal) -> Unauthorized:
    """A token's holder fetches another and comes back; a key's does not."""
    if principal.key_id.startswith(TOKEN_PREFIX):
        return Unauthorized("token_expired", "This token has expired.")
    return expired()


def _no_unwatch() -> None:
    """What takes back a watch where nothing ever ends."""


def _split(url: str) -> SplitResult:
    """`urlsplit` for what strangers write: what it refuses has no parts."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")


def is_loopback(host: str) -> bool:
    """True for the names and addresses that only this machine can reach."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
