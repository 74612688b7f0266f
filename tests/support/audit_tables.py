"""Rows for the audit log's suites, and hands that get at its tables past the journal."""

from __future__ import annotations

from typing import Any

from persistence.memory.journal import MemoryJournal
from persistence.postgres.journal import PostgresJournal
from persistence.sqlite.journal import SqliteJournal
from sessions.model.audit import Audited, AuditFloor, AuditLog, AuditRow, public
from sessions.model.types import Principal, TenantId, UnixMs
from sessions.ports import Journal
from tests.support.journals import ACME, NOW

BETA = TenantId("beta")
BOSS = Principal(tenant=ACME, key_id="boss", role="service", scopes=("admin",))


def a_row(number: int = 0, *, user: str | None = None, **fields: Any) -> Audited:
    usual: dict[str, Any] = {"action": "key.created", "at": UnixMs(NOW + number), "by": BOSS, "detail": {"n": number}}
    return Audited(**usual | fields, user=user)


async def bodies(audit: AuditLog, tenant: TenantId = ACME) -> list[dict[str, Any]]:
    return [public(row) for row in await audit.rows(tenant, after=0, limit=1000)]


async def sql(journal: Journal, statement: str, *values: Any) -> None:
    """Runs a statement as somebody with a connection of their own to the database would. `?` marks the values."""
    match journal:
        case SqliteJournal():
            await journal.job(lambda connection: connection.execute(statement, values) and None)
        case PostgresJournal():
            for number in range(1, len(values) + 1):
                statement = statement.replace("?", f"${number}", 1)
            async with journal.transaction() as connection:
                await connection.execute(statement, *values)


async def unlock(journal: Journal) -> None:
    """What keeps rows from being changed by a slip is no hindrance to whoever means to."""
    match journal:
        case SqliteJournal():
            await sql(journal, "DROP TRIGGER audit_is_not_changed")
            await sql(journal, "DROP TRIGGER audit_is_not_deleted")
        case PostgresJournal():
            await sql(journal, "DROP TRIGGER audit_stays ON audit")
            await sql(journal, "DROP TRIGGER audit_stays_from_floor ON audit")


async def put_back(journal: Journal, rows: list[AuditRow]) -> None:
    """The table of a tenant as given."""
    if isinstance(journal, MemoryJournal):
        journal.store.audit_rows[ACME] = list(rows)
        return
    await sql(journal, "DELETE FROM audit")
    for row in rows:
        await sql(journal, "INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)


async def put_floor(journal: Journal, floor: AuditFloor | None) -> None:
    """The floor of a tenant as given."""
    if isinstance(journal, MemoryJournal):
        journal.store.audit_floors.pop(ACME, None)
        if floor is not None:
            journal.store.audit_floors[ACME] = floor
        return
    await sql(journal, "DELETE FROM audit_floors")
    if floor is not None:
        await sql(journal, "INSERT INTO audit_floors VALUES (?, ?, ?, ?, ?, ?)", ACME, *floor)


class Tampered:
    """A log whose tables say something else; `...` leaves the head, or the floor, as it is."""

    def __init__(self, audit: AuditLog, rows: list[AuditRow], head: Any = ..., floor: Any = ...) -> None:
        self._audit = audit
        self._table = rows
        self._head = head
        self._floor = floor
        self.sealer = audit.sealer

    async def rows(self, tenant: TenantId, *, after: int, limit: int, about: Any = None) -> list[AuditRow]:
        return [row for row in self._table if row.seq > after][:limit]

    async def head(self, tenant: TenantId) -> Any:
        return await self._audit.head(tenant) if self._head is ... else self._head

    async def floor(self, tenant: TenantId) -> Any:
        return await self._audit.floor(tenant) if self._floor is ... else self._floor

    async def trim(self, tenant: TenantId, audited: Any, *, expected: Any, floor: Any) -> bool:
        raise AssertionError("nobody trims here")

    async def record(self, tenant: TenantId, audited: Any) -> None:
        raise AssertionError("nobody writes here")

    async def tenants(self) -> list[TenantId]:
        return [ACME]
