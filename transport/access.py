"""Who may come in: keys, tickets, and which web pages and host names may be used.

Keys are known by their SHA-256 only. With no keys configured everyone is one local principal; then the server listens
on loopback only, and only for loopback host names, so that a page of somebody else's cannot reach it through a name
that it points at this machine (DNS rebinding). Which sessions a principal may see is `sessions.access`' business.

Tickets stand for a principal for 30 s and one use, where a client cannot send a header (browsers, RFC 6455 has none).
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

from sessions.errors import Forbidden, Limited, Unauthorized
from sessions.types import LOCAL_PRINCIPAL, Principal

TICKET_S: Final = 30.0
TICKETS_MAX: Final = 100_000
CREDENTIAL_LENGTH_MAX: Final = 4096


def key_digest(key: str) -> str:
    """How a key is written in the configuration: hex SHA-256. Keys are long random strings, so no salt is needed."""
    return hashlib.sha256(key.encode()).hexdigest()


class Access:
    """Turns credentials into principals. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        keys: Mapping[str, Principal],
        *,
        clock: Callable[[], float],
        origins: Iterable[str] = (),
        hosts: Iterable[str] = (),
    ) -> None:
        """`keys` by `key_digest`; `origins` as browsers write them ("https://chat.example"), "*" for every one."""
        self._keys = dict(keys)
        self._clock = clock
        self._origins = {origin.rstrip("/").lower() for origin in origins}
        self._hosts = {host.lower() for host in hosts}
        self._tickets: dict[str, tuple[Principal, float]] = {}  # by digest, oldest first

    @property
    def open(self) -> bool:
        """No keys are configured: everyone is the local principal."""
        return not self._keys

    def authenticate(self, credential: str | None) -> Principal:
        """The principal of a key. Raises Unauthorized, which does not say whether a key exists."""
        if self.open:
            return LOCAL_PRINCIPAL
        if credential is None:
            raise Unauthorized("unauthorized", "A key is needed: send it as a Bearer token or in hello.")
        # A dictionary lookup of the digest: what its timing tells is about the digest, which says nothing of the key.
        principal = self._keys.get(key_digest(credential)) if len(credential) <= CREDENTIAL_LENGTH_MAX else None
        if principal is None:
            raise Unauthorized("unauthorized", "This key is not known here.")
        return principal

    # -- tickets ----------------------------------------------------------------------------------------------------

    def issue_ticket(self, principal: Principal) -> str:
        """A ticket for one connection within `TICKET_S`. Raises Limited when too many are open."""
        now = self._clock()
        for digest, (_, until) in list(self._tickets.items()):
            if until > now:
                break
            del self._tickets[digest]
        if len(self._tickets) >= TICKETS_MAX:
            raise Limited("rate_limited", "Too many tickets are open.", retry_after_ms=round(TICKET_S * 1000))
        ticket = "tkt_" + secrets.token_urlsafe(24)
        self._tickets[key_digest(ticket)] = (principal, now + TICKET_S)
        return ticket

    def redeem_ticket(self, ticket: str) -> Principal:
        """The ticket's principal; the ticket is used up. Raises Unauthorized."""
        found = self._tickets.pop(key_digest(ticket), None)
        if found is None or found[1] <= self._clock():
            raise Unauthorized("unauthorized", "This ticket is unknown, used or too old: ask for another.")
        return found[0]

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
