"""Caches every revocation of tokens in this process's memory, and follows changes in the store.

As soon as one is answered it is in force in the process that stored it, in every other within `POLL_S` and one read
of the journal; connections and streams that are open by such a token end then. A process that cannot read the journal
for `STALE_S` trusts no token any more (`check_fresh`): the same promise as `transport.auth.api_key_cache` makes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from sessions.model.audit import Audited
from sessions.model.errors import SessileError, Unauthorized, Unavailable
from sessions.model.revocations import REVOCATIONS_MAX, Revocation, RevocationKind, RevocationStore, places_of
from sessions.model.types import TenantId, TokenRef, UnixMs
from transport.auth.api_key_cache import PAGE, POLL_S, READ_S, STALE_S

log = structlog.get_logger(__name__)

Changed = Callable[[Revocation | None], None]
"""Called with what was revoked; None: revocations cannot be trusted any more, the journal was not read for too long."""

_Place = tuple[str, RevocationKind, str]


@dataclass(eq=False, repr=False)
class RevocationCache:
    """The cache. `clock` is monotonic, in seconds; `incarnation` is the journal's."""

    store: RevocationStore
    now_ms: Callable[[], UnixMs]
    clock: Callable[[], float]
    incarnation: Callable[[], str] = str
    _kept: dict[_Place, Revocation] = field(default_factory=dict, init=False)
    _version: int = field(default=0, init=False)
    _incarnation: str = field(default="", init=False)
    _fresh_at: float | None = field(default=None, init=False)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _listeners: list[Changed] = field(default_factory=list, init=False)

    def subscribe(self, changed: Changed) -> None:
        self._listeners.append(changed)

    def check(self, token: TokenRef) -> None:
        """Raises Unauthorized for a token that was revoked, Unavailable where that cannot be known."""
        for place in places_of(token):
            revocation = self._kept.get(place)
            if revocation is not None and revocation.covers(token):
                raise token_revoked()
        self.check_fresh()

    def check_fresh(self) -> None:
        """Raises Unavailable where it has been too long since the store was read."""
        if self._fresh_at is None or self.clock() - self._fresh_at > STALE_S:
            raise Unavailable("keys_unavailable", "Tokens cannot be checked at the moment.", retry_after_ms=1000)

    @property
    def crowded(self) -> bool:
        """Whether half of all that may be kept is."""
        return len(self._kept) >= REVOCATIONS_MAX // 2

    def all(self) -> list[Revocation]:
        """Every one that has not expired, the newest first."""
        now = self.now_ms()
        return sorted((each for each in self._kept.values() if each.expires_at > now), key=lambda each: -each.version)

    async def add(self, revocation: Revocation, audit: Audited, tenant: TenantId) -> Revocation:
        """Stored, and from now on in force here. Raises Limited, Unavailable."""
        stored = await self.store.add(revocation, audit=audit, tenant=tenant)
        self._take(stored)
        log.info("token_revoked", issuer=stored.issuer, kind=stored.kind, by=stored.by)
        return stored

    async def refresh(self) -> None:
        """Takes in what has changed. Raises Unavailable."""
        try:
            async with asyncio.timeout(READ_S):
                await self._read()
        except TimeoutError as error:
            raise Unavailable("keys_unavailable", "The revocations could not be read in time.") from error

    async def run(self) -> None:
        """Keeps the cache up to date until it is cancelled."""
        reported = False
        while True:
            try:
                await self.refresh()
                reported = False
            except SessileError as error:
                log.warning("revocations_read_failed", error=error.code)
                try:
                    self.check_fresh()
                except Unavailable:
                    if not reported:
                        reported = True
                        self._notify(None)
            await asyncio.sleep(POLL_S)

    async def _read(self) -> None:
        async with self._reading:
            began, incarnation = self.clock(), self.incarnation()
            if incarnation != self._incarnation:  # what was revoked stays so, whatever a backup says
                self._version, self._incarnation = 0, incarnation
            while changes := await self.store.changes(after=self._version, limit=PAGE):
                for each in changes:
                    self._version = each.version
                    self._take(each)
            now = self.now_ms()
            for place in [place for place, each in self._kept.items() if each.expires_at <= now]:
                del self._kept[place]
            self._fresh_at = began

    def _take(self, revocation: Revocation) -> None:
        if revocation.expires_at > self.now_ms() and self._kept.get(revocation.place) != revocation:
            self._kept[revocation.place] = revocation
            self._notify(revocation)

    def _notify(self, revocation: Revocation | None) -> None:
        for changed in self._listeners:
            changed(revocation)


def token_revoked() -> Unauthorized:
    return Unauthorized("unauthorized", "This token was revoked.")
