"""One-time tickets for WebSockets: each stands for a principal once, for `TICKET_S`.

Tickets are known by their digests only; `transport.auth.authenticator` makes them. One process keeps them in its
memory, the gateways of a cluster in the directory's Valkey (`transport.gateway_store.valkey`), so that a ticket of one
is good at every other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from sessions.model.errors import Limited
from sessions.model.types import Principal

TICKET_S: Final = 30.0
TICKETS_MAX: Final = 100_000  # unused ones, in this process


class Tickets(Protocol):
    async def put(self, digest: str, principal: Principal) -> None:
        """Stores a ticket for `TICKET_S`. Raises Limited if too many are unused, Unavailable."""

    async def take(self, digest: str) -> Principal | None:
        """Returns a ticket's principal and removes the ticket; None if it is unknown. Raises Unavailable."""


def too_many() -> Limited:
    return Limited("rate_limited", "Too many tickets are open.", retry_after_ms=round(TICKET_S * 1000))


class MemoryTickets:
    """Implements `Tickets` for one process. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[str, tuple[Principal, float]] = {}  # oldest first

    async def put(self, digest: str, principal: Principal) -> None:
        now = self._clock()
        for old, (_, until) in list(self._open.items()):
            if until > now:
                break
            del self._open[old]
        if len(self._open) >= TICKETS_MAX:
            raise too_many()
        self._open[digest] = (principal, now + TICKET_S)

    async def take(self, digest: str) -> Principal | None:
        principal, until = self._open.pop(digest, (None, 0.0))
        return principal if until > self._clock() else None
