"""Revocations in memory. The port is `sessions.model.revocations.RevocationStore`."""

from __future__ import annotations

import msgspec

from persistence.memory.database import MemoryDatabase
from sessions.model.audit import Audited
from sessions.model.revocations import REVOCATIONS_MAX, Revocation, merged, too_many_revocations
from sessions.model.types import TenantId


class MemoryRevocations:
    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def add(
        self, revocation: Revocation, *, audit: Audited | None = None, tenant: TenantId | None = None
    ) -> Revocation:
        kept = self._database.revocations
        newest = max((revocation.version for revocation in kept.values()), default=0)
        for old in list(kept.values()):
            if old.expires_at < revocation.at and old.version < newest and old.place != revocation.place:
                del kept[old.place]
        if len(kept) >= REVOCATIONS_MAX and revocation.place not in kept:
            raise too_many_revocations()
        stored = msgspec.structs.replace(merged(kept.get(revocation.place), revocation), version=newest + 1)
        kept[revocation.place] = stored
        if audit is not None and tenant is not None:
            self._database.chain([self._database.sealer.entry(tenant, audit)])
        return stored

    async def changes(self, *, after: int, limit: int) -> list[Revocation]:
        behind = [revocation for revocation in self._database.revocations.values() if revocation.version > after]
        return sorted(behind, key=lambda each: each.version)[:limit]
