"""The audit log in the journal's database: in memory, in SQLite, in PostgreSQL. The port is
`sessions.model.audit.AuditLog`.

A chain has one place to grow, so whoever writes a row reads the chain's head first. In SQLite there is one writer. In
PostgreSQL a row is made by the process, which alone has the key, and is inserted by a statement that moves the head
from what the process took it for: whoever was overtaken reads the head again and makes the row anew. Nothing waits on
a lock that a process holds while it is away.

Entries of appends are chained where appends are committed (`sqlite_transaction`, `postgres_audit`, `memory`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from persistence.memory.journal import MemoryJournal
from persistence.postgres.audit_rows import (
    AUDIT_COLUMNS,
    AUDIT_TYPES,
    RECORD,
    TRIES,
    chain_columns,
    chain_entries,
    columns,
    heads_of,
    lock_chain,
    too_much_contention,
)
from persistence.postgres.journal import PostgresJournal
from persistence.sqlite.audit_rows import chain
from persistence.sqlite.journal import SqliteJournal
from persistence.sqlite.library import sqlite3
from persistence.validation import check_text
from sessions.model.audit import Audited, AuditFloor, AuditHead, AuditLog, AuditRow, Sealer
from sessions.model.errors import BadInput
from sessions.model.types import TenantId

ROWS: Final = f"SELECT {AUDIT_COLUMNS} FROM audit WHERE tenant = $1 AND seq > $2 ORDER BY seq LIMIT $3"
TENANTS: Final = "SELECT tenant FROM audit_heads WHERE seq > 0 ORDER BY tenant"
FLOOR_COLUMNS: Final = "tenant, seq, mac, until, key_id, seal"
FLOOR: Final = "SELECT seq, mac, until, key_id, seal FROM audit_floors WHERE tenant = $1"
MOVE_FLOOR: Final = (
    f"INSERT INTO audit_floors ({FLOOR_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (tenant) DO UPDATE SET"
    " seq = excluded.seq, mac = excluded.mac, until = excluded.until, key_id = excluded.key_id, seal = excluded.seal"
)
DELETE_THROUGH: Final = "DELETE FROM audit WHERE tenant = $1 AND seq <= $2"
HEAD: Final = "SELECT seq, mac, seal FROM audit_heads WHERE tenant = $1 AND seq > 0"


def rows_about_statement(num_names: int) -> str:
    names = ", ".join(f"${4 + n}" for n in range(num_names))
    return (
        f"SELECT {AUDIT_COLUMNS} FROM audit WHERE tenant = $1 AND seq > $2 AND about <> '' AND about IN ({names})"
        " ORDER BY seq LIMIT $3"
    )


def row_of(row: Any) -> AuditRow:
    tenant, seq, at, about, key_id, body, prev, mac = tuple(row)
    return AuditRow(TenantId(tenant), seq, at, about, key_id, bytes(body), bytes(prev), bytes(mac))


def _floor_of(rows: Sequence[Any]) -> AuditFloor | None:
    for seq, mac, until, key_id, seal in rows:
        return AuditFloor(seq, bytes(mac), until, key_id, bytes(seal))
    return None


def _sqlite(statement: str) -> str:
    return re.sub(r"\$(\d+)", r"?\1", statement)


class _SqlAudit:
    """What both databases are asked in the same words."""

    async def _rows(self, statement: str, values: Sequence[Any]) -> list[Any]:
        raise NotImplementedError

    async def rows(
        self, tenant: TenantId, *, after: int, limit: int, about: Sequence[str] | None = None
    ) -> list[AuditRow]:
        check_text(tenant, *(about or ()))
        statement, names = (ROWS, ()) if about is None else (rows_about_statement(len(about)), tuple(about))
        return [row_of(row) for row in await self._rows(statement, (tenant, after, limit, *names))]

    async def head(self, tenant: TenantId) -> AuditHead | None:
        check_text(tenant)
        for seq, mac, seal in await self._rows(HEAD, (tenant,)):
            return AuditHead(seq, bytes(mac), bytes(seal))
        return None

    async def floor(self, tenant: TenantId) -> AuditFloor | None:
        check_text(tenant)
        return _floor_of(await self._rows(FLOOR, (tenant,)))

    async def tenants(self) -> list[TenantId]:
        return [TenantId(tenant) for (tenant,) in await self._rows(TENANTS, ())]


class SqliteAudit(_SqlAudit):
    def __init__(self, journal: SqliteJournal) -> None:
        self._journal = journal

    @property
    def sealer(self) -> Sealer:
        return self._journal.sealer

    async def _rows(self, statement: str, values: Sequence[Any]) -> list[Any]:
        return await self._journal.rows(_sqlite(statement), values)

    async def record(self, tenant: TenantId, audited: Sequence[Audited]) -> None:
        entries = [self.sealer.entry(tenant, each) for each in audited]

        def step(connection: sqlite3.Connection) -> None:
            chain(connection, self.sealer, entries)

        await self._journal.job(step)

    async def trim(self, tenant: TenantId, audited: Audited, *, expected: AuditFloor | None, floor: AuditFloor) -> bool:
        entry = self.sealer.entry(tenant, audited)

        def step(connection: sqlite3.Connection) -> bool:
            if _floor_of(connection.execute(_sqlite(FLOOR), (tenant,)).fetchall()) != expected:
                return False
            connection.execute(_sqlite(MOVE_FLOOR), (tenant, *floor))
            chain(connection, self.sealer, [entry])
            connection.execute(_sqlite(DELETE_THROUGH), (tenant, floor.seq))
            return True

        return bool(await self._journal.job(step))


class PostgresAudit(_SqlAudit):
    def __init__(self, journal: PostgresJournal) -> None:
        self._journal = journal

    @property
    def sealer(self) -> Sealer:
        return self._journal.sealer

    async def _rows(self, statement: str, values: Sequence[Any]) -> list[Any]:
        return await self._journal.rows(statement, *values)

    async def record(self, tenant: TenantId, audited: Sequence[Audited]) -> None:
        entries = [self.sealer.entry(tenant, each) for each in audited]
        if not entries:
            return
        for _ in range(TRIES):
            async with self._journal.transaction() as connection:
                head = (await heads_of(connection, [tenant]))[tenant]
                rows, behind = self.sealer.chained(head, entries)
                chained = (*chain_columns(tenant, head, behind), *columns(rows, len(AUDIT_TYPES)))
                if await connection.fetchval(RECORD, *chained):
                    return
        raise too_much_contention()

    async def trim(self, tenant: TenantId, audited: Audited, *, expected: AuditFloor | None, floor: AuditFloor) -> bool:
        async with self._journal.transaction() as connection:
            await lock_chain(connection, tenant)  # whoever trims beside us has ended when this returns
            if _floor_of(await connection.fetch(FLOOR, tenant)) != expected:
                return False
            await connection.execute(MOVE_FLOOR, tenant, *floor)
            await connection.execute(DELETE_THROUGH, tenant, floor.seq)
            await chain_entries(connection, self.sealer, [self.sealer.entry(tenant, audited)])
            return True


class MemoryAudit:
    """Gone with the journal that it belongs to."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._store = journal.store

    @property
    def sealer(self) -> Sealer:
        return self._store.sealer

    async def record(self, tenant: TenantId, audited: Sequence[Audited]) -> None:
        self._store.chain([self.sealer.entry(tenant, each) for each in audited])

    async def rows(
        self, tenant: TenantId, *, after: int, limit: int, about: Sequence[str] | None = None
    ) -> list[AuditRow]:
        found = (row for row in self._store.audit_rows.get(tenant, ()) if row.seq > after)
        return [row for row in found if about is None or (row.about and row.about in about)][:limit]

    async def head(self, tenant: TenantId) -> AuditHead | None:
        return self._store.audit_heads.get(tenant)

    async def floor(self, tenant: TenantId) -> AuditFloor | None:
        return self._store.audit_floors.get(tenant)

    async def trim(self, tenant: TenantId, audited: Audited, *, expected: AuditFloor | None, floor: AuditFloor) -> bool:
        store = self._store
        if store.audit_floors.get(tenant) != expected:
            return False
        store.audit_floors[tenant] = floor
        store.chain([self.sealer.entry(tenant, audited)])
        store.audit_rows[tenant] = [row for row in store.audit_rows[tenant] if row.seq > floor.seq]
        return True

    async def tenants(self) -> list[TenantId]:
        return sorted(self._store.audit_heads)


def audit_of(journal: object) -> AuditLog:
    """The audit log that lies in a journal's database; good for as long as the journal is open."""
    match journal:
        case SqliteJournal():
            return SqliteAudit(journal)
        case PostgresJournal():
            return PostgresAudit(journal)
        case MemoryJournal():
            return MemoryAudit(journal)
        case _:
            raise BadInput("unknown_journal", "This journal keeps no audit log.", param="journal")
