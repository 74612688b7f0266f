"""Shares out the connections of a server, so that one address or one principal never takes them all.

Three counts: plain connections (HTTP, before or without an upgrade) of an address; connections of an address that have
shown no credential yet, half-open heads and WebSockets before hello included; connections of a principal, which is a
key with all users that it speaks for, or the user of a token. Whoever has taken a whole share is refused, and nobody
else. Trusted proxies speak for many, and have no share as addresses.

Pure; belongs to one event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec

from sessions.model.errors import Limited, Overloaded
from sessions.model.types import Principal
from transport.auth.authenticator import TOKEN_PREFIX
from transport.auth.client_addresses import address_group

PLACE: Final = "place"  # the name of a connection's `Place` in the state of its HTTP requests
RETRY_MS: Final = 5_000


class ShareLimits(msgspec.Struct, frozen=True, kw_only=True):
    plain_per_address: int = 768
    unauthenticated_per_address: int = 256
    per_principal: int = 10_000


class Place:
    """One connection's share of the counts, until `close`."""

    __slots__ = ("_address", "_plain", "_principal", "_shares", "_unauthenticated")

    def __init__(self, shares: ConnectionShares, address: str | None, *, plain: bool) -> None:
        self._shares = shares
        self._address = address  # None: the address is not counted
        self._plain = plain and address is not None
        self._unauthenticated = address is not None
        self._principal: tuple[str, str] | None = None

    def authenticated(self, principal: Principal | None) -> None:
        """Counts the connection for a principal (None: the server has no keys). Raises Limited if the principal has too
        many connections."""
        name = None if principal is None else key_of(principal)
        if name != self._principal:
            self._shares.take_principal(name)
            self._leave_principal()
            self._principal = name
        if self._unauthenticated:
            self._unauthenticated = False
            _leave(self._shares.unauthenticated, self._address or "")

    def upgraded(self) -> None:
        """Counts the connection as a WebSocket: it is no plain HTTP connection any more."""
        if self._plain:
            self._plain = False
            _leave(self._shares.plain, self._address or "")

    def close(self) -> None:
        """Takes the connection out of all counts. Idempotent."""
        self.upgraded()
        if self._unauthenticated:
            self._unauthenticated = False
            _leave(self._shares.unauthenticated, self._address or "")
        self._leave_principal()

    def _leave_principal(self) -> None:
        if self._principal is not None:
            _leave(self._shares.principals, self._principal)
            self._principal = None


class ConnectionShares:
    """The counts of one server's connections per address and per principal. `exempt` addresses are not limited."""

    def __init__(
        self, limits: ShareLimits | None = None, *, exempt: Callable[[str | None], bool] = lambda _: False
    ) -> None:
        self.plain: Counter[str] = Counter()
        self.unauthenticated: Counter[str] = Counter()
        self.principals: Counter[tuple[str, str]] = Counter()
        self._limits = limits or ShareLimits()
        self._exempt = exempt

    def open(self, address: str | None, *, plain: bool) -> Place:
        """Counts a connection from `address` and returns its place. Raises Overloaded if the address has too many."""
        if self._exempt(address):
            return Place(self, None, plain=plain)
        name, limits = address_group(address), self._limits
        if (plain and self.plain[name] >= limits.plain_per_address) or (
            self.unauthenticated[name] >= limits.unauthenticated_per_address
        ):
            raise Overloaded("overloaded", "Too many connections from this address.", retry_after_ms=RETRY_MS)
        if plain:
            self.plain[name] += 1
        self.unauthenticated[name] += 1
        return Place(self, name, plain=plain)

    def take_principal(self, name: tuple[str, str] | None) -> None:
        """Counts a connection for a principal, whose `name` is from `key_of`; counts nothing for None. Raises Limited
        if the principal has too many connections."""
        if name is None:
            return
        if self.principals[name] >= self._limits.per_principal:
            raise Limited("rate_limited", "Too many connections with this key.", retry_after_ms=RETRY_MS)
        self.principals[name] += 1


def key_of(principal: Principal) -> tuple[str, str]:
    """Returns (tenant, name) under which a principal is counted: its key, for all users; with a token, its user."""
    vouched = principal.key_id.startswith(TOKEN_PREFIX)
    return principal.tenant, principal.id if vouched else principal.key_id


def _leave(counts: Counter[Any], name: object) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
