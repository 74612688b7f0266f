"""The audit log in memory. The port is `sessions.model.audit.AuditLog`."""

from __future__ import annotations

from collections.abc import Sequence

from persistence.memory.database import MemoryDatabase
from sessions.model.audit import Audited, AuditFloor, AuditHead, AuditRow, Sealer
from sessions.model.types import TenantId


class MemoryAudit:
    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    @property
    def sealer(self) -> Sealer:
        return self._database.sealer

    async def record(self, tenant: TenantId, audited: Sequence[Audited]) -> None:
        self._database.chain([self.sealer.entry(tenant, row) for row in audited])

    async def rows(
        self, tenant: TenantId, *, after: int, limit: int, about: Sequence[str] | None = None
    ) -> list[AuditRow]:
        found = (row for row in self._database.audit_rows.get(tenant, ()) if row.seq > after)
        return [row for row in found if about is None or (row.about and row.about in about)][:limit]

    async def head(self, tenant: TenantId) -> AuditHead | None:
        return self._database.audit_heads.get(tenant)

    async def floor(self, tenant: TenantId) -> AuditFloor | None:
        return self._database.audit_floors.get(tenant)

    async def trim(self, tenant: TenantId, audited: Audited, *, expected: AuditFloor | None, floor: AuditFloor) -> bool:
        database = self._database
        if database.audit_floors.get(tenant) != expected:
            return False
        database.audit_floors[tenant] = floor
        database.chain([self.sealer.entry(tenant, audited)])
        database.audit_rows[tenant] = [row for row in database.audit_rows[tenant] if row.seq > floor.seq]
        return True

    async def tenants(self) -> list[TenantId]:
        return sorted(self._database.audit_heads)
