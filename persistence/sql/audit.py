"""The audit log in SQLite and PostgreSQL. The port is `sessions.model.audit.AuditLog`.

A chain has one place to grow, so whoever writes a row reads the chain's head first: each driver has its own way to do
that (`audit_rows.py` of both), which appends take too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from persistence.sql.script import Chain, LockChain, Query, Script, SqlDatabase
from persistence.validation import check_text
from sessions.model.audit import Audited, AuditFloor, AuditHead, AuditRow, Sealer
from sessions.model.types import TenantId

AUDIT_COLUMNS: Final = "tenant, seq, at, about, key_id, body, prev, mac"

_SELECT: Final = f"SELECT {AUDIT_COLUMNS} FROM audit WHERE tenant = $1 AND seq > $2"
_TENANTS: Final = "SELECT tenant FROM audit_heads WHERE seq > 0 ORDER BY tenant"
_FLOOR: Final = "SELECT seq, mac, until, key_id, seal FROM audit_floors WHERE tenant = $1"
_MOVE_FLOOR: Final = (
    "INSERT INTO audit_floors (tenant, seq, mac, until, key_id, seal) VALUES ($1, $2, $3, $4, $5, $6)"
    " ON CONFLICT (tenant) DO UPDATE SET"
    " seq = excluded.seq, mac = excluded.mac, until = excluded.until, key_id = excluded.key_id, seal = excluded.seal"
)
_DELETE_THROUGH: Final = "DELETE FROM audit WHERE tenant = $1 AND seq <= $2"
_HEAD: Final = "SELECT seq, mac, seal FROM audit_heads WHERE tenant = $1 AND seq > 0"


class SqlAudit:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    @property
    def sealer(self) -> Sealer:
        return self._database.sealer

    async def record(self, tenant: TenantId, audited: Sequence[Audited]) -> None:
        entries = [self.sealer.entry(tenant, row) for row in audited]

        def script() -> Script[None]:
            yield Chain(entries)

        await self._database.run(script)

    async def rows(
        self, tenant: TenantId, *, after: int, limit: int, about: Sequence[str] | None = None
    ) -> list[AuditRow]:
        check_text(tenant, *(about or ()))
        where = ""
        if about is not None:
            where = f" AND about <> '' AND about IN ({', '.join(f'${4 + n}' for n in range(len(about)))})"
        rows = await self._database.rows(
            f"{_SELECT}{where} ORDER BY seq LIMIT $3", (tenant, after, limit, *(about or ()))
        )
        return [_row_of(row) for row in rows]

    async def head(self, tenant: TenantId) -> AuditHead | None:
        check_text(tenant)
        for seq, mac, seal in await self._database.rows(_HEAD, (tenant,)):
            return AuditHead(seq, bytes(mac), bytes(seal))
        return None

    async def floor(self, tenant: TenantId) -> AuditFloor | None:
        check_text(tenant)
        return _floor_of(await self._database.rows(_FLOOR, (tenant,)))

    async def trim(self, tenant: TenantId, audited: Audited, *, expected: AuditFloor | None, floor: AuditFloor) -> bool:
        entry = self.sealer.entry(tenant, audited)

        def script() -> Script[bool]:
            yield LockChain(tenant)  # whoever trims beside us has ended when this returns
            if _floor_of((yield Query(_FLOOR, (tenant,)))) != expected:
                return False
            yield Query(_MOVE_FLOOR, (tenant, *floor))
            yield Query(_DELETE_THROUGH, (tenant, floor.seq))
            yield Chain([entry])
            return True

        return await self._database.run(script)

    async def tenants(self) -> list[TenantId]:
        return [TenantId(tenant) for (tenant,) in await self._database.rows(_TENANTS)]


def _row_of(row: Any) -> AuditRow:
    tenant, seq, at, about, key_id, body, prev, mac = tuple(row)
    return AuditRow(TenantId(tenant), seq, at, about, key_id, bytes(body), bytes(prev), bytes(mac))


def _floor_of(rows: Sequence[Any]) -> AuditFloor | None:
    for seq, mac, until, key_id, seal in rows:
        return AuditFloor(seq, bytes(mac), until, key_id, bytes(seal))
    return None
