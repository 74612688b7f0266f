"""Rows for the audit log's suites, and hands that get at its tables past the store."""

from __future__ import annotations

from typing import Any

from persistence.memory.store import MemoryStore
from persistence.postgres.store import PostgresStore
from persistence.sqlite.store import SqliteStore
from persistence.sqlite.transaction import STORE_KEY
from persistence.write_batch import JobWrite
from sessions.model.audit import Audited, AuditFloor, AuditLog, AuditRow, public
from sessions.model.types import Principal, TenantId, UnixMs
from sessions.store import Store
from tests.support.stores.journals import ACME, NOW

BETA = TenantId("beta")
BOSS = Principal(tenant=ACME, key_id="boss", role="service", scopes=("admin",))


def a_row(number: int = 0, *, user: str | None = None, **fields: Any) -> Audited:
    usual: dict[str, Any] = {"action": "key.created", "at": UnixMs(NOW + number), "by": BOSS, "detail": {"n": number}}
    return Audited(**usual | fields, user=user)


async def bodies(audit: AuditLog, tenant: TenantId = ACME) -> list[dict[str, Any]]:
    return [public(row) for row in await audit.rows(tenant, after=0, limit=1000)]


async def sql(store: Store, statement: str, *values: Any) -> None:
    """Runs a statement as somebody with a connection of their own to the database would. `?` marks the values."""
    match store:
        case SqliteStore() | MemoryStore():
            await store.database.submit(
                JobWrite(STORE_KEY, lambda connection: connection.execute(statement, values) and None)
            )
        case PostgresStore():
            for number in range(1, len(values) + 1):
                statement = statement.replace("?", f"${number}", 1)
            async with store.database.transaction() as connection:
                await connection.execute(statement, *values)


async def unlock(store: Store) -> None:
    """What keeps rows from being changed by a slip is no hindrance to whoever means to."""
    match store:
        case SqliteStore() | MemoryStore():
            await sql(store, "DROP TRIGGER audit_is_not_changed")
            await sql(store, "DROP TRIGGER audit_is_not_deleted")
        case PostgresStore():
            await sql(store, "DROP TRIGGER audit_stays ON audit")
            await sql(store, "DROP TRIGGER audit_stays_from_floor ON audit")


async def put_back(store: Store, rows: list[AuditRow]) -> None:
    """The table of a tenant as given."""
    await sql(store, "DELETE FROM audit")
    for row in rows:
        await sql(store, "INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)


async def put_floor(store: Store, floor: AuditFloor | None) -> None:
    """The floor of a tenant as given."""
    await sql(store, "DELETE FROM audit_floors")
    if floor is not None:
        await sql(store, "INSERT INTO audit_floors VALUES (?, ?, ?, ?, ?, ?)", ACME, *floor)


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
