"""Caches every revocation of tokens in this process's memory, and follows changes in the store.

As soon as one is answered it is in force in the process that stored it, in every other within `POLL_S` and one read
of the journal; connections and streams that are open by such a token end then. A process that cannot read the journal
for `STALE_S` trusts no token any more (`check_fresh`): the same promise as `transport.auth.api_key_cache` makes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from sessions.model.audit import Audited
from sessions.model.errors import Unauthorized
from sessions.model.revocations import REVOCATIONS_MAX, Revocation, RevocationKind, RevocationStore, places_of
from sessions.model.types import TenantId, TokenRef, UnixMs
from transport.auth.store_follower import PAGE, StoreFollower

log = structlog.get_logger(__name__)

Changed = Callable[[Revocation | None], None]
"""Called with a new revocation; with None if none can be trusted, because the store was not read for too long."""

_Place = tuple[str, RevocationKind, str]


@dataclass(eq=False, repr=False)
class RevocationCache:
    """A copy of all revocations, kept up to date. `clock` is monotonic in seconds, `incarnation` the journal's."""

    store: RevocationStore
    now_ms: Callable[[], UnixMs]
    clock: Callable[[], float]
    incarnation: Callable[[], str] = str
    _kept: dict[_Place, Revocation] = field(default_factory=dict, init=False)
    _version: int = field(default=0, init=False)
    _incarnation: str = field(default="", init=False)
    _listeners: list[Changed] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        follower = StoreFollower(
            self._read, lambda _: self._notify(None), self.clock, name="revocations", checked="Tokens"
        )
        self.check_fresh, self.refresh, self.run = follower.check_fresh, follower.refresh, follower.run

    def subscribe(self, changed: Changed) -> None:
        self._listeners.append(changed)

    def check(self, token: TokenRef) -> None:
        """Raises Unauthorized if a token was revoked, Unavailable if that cannot be known."""
        for place in places_of(token):
            revocation = self._kept.get(place)
            if revocation is not None and revocation.covers(token):
                raise token_revoked()
        self.check_fresh()

    @property
    def crowded(self) -> bool:
        """Whether there are half as many revocations as may be kept, or more."""
        return len(self._kept) >= REVOCATIONS_MAX // 2

    def all(self) -> list[Revocation]:
        """Returns the revocations that have not expired, newest first."""
        now = self.now_ms()
        return sorted((each for each in self._kept.values() if each.expires_at > now), key=lambda each: -each.version)

    async def add(self, revocation: Revocation, audit: Audited, tenant: TenantId) -> Revocation:
        """Stores a revocation, which is in force here when it returns. Raises Limited, Unavailable."""
        stored = await self.store.add(revocation, audit=audit, tenant=tenant)
        self._take(stored)
        log.info("token_revoked", issuer=stored.issuer, kind=stored.kind, by=stored.by)
        return stored

    async def _read(self) -> None:
        incarnation = self.incarnation()
        if incarnation != self._incarnation:  # revocations stay in force, even if a restored backup lacks them
            self._version, self._incarnation = 0, incarnation
        while changes := await self.store.changes(after=self._version, limit=PAGE):
            for each in changes:
                self._version = each.version
                self._take(each)
        now = self.now_ms()
        for place in [place for place, each in self._kept.items() if each.expires_at <= now]:
            del self._kept[place]

    def _take(self, revocation: Revocation) -> None:
        if revocation.expires_at > self.now_ms() and self._kept.get(revocation.place) != revocation:
            self._kept[revocation.place] = revocation
            self._notify(revocation)

    def _notify(self, revocation: Revocation | None) -> None:
        for changed in self._listeners:
            changed(revocation)


def token_revoked() -> Unauthorized:
    return Unauthorized("unauthorized", "This token was revoked.")
