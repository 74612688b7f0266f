"""Reads and changes the tables of a store in memory for tests: at once, and past its medium."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from persistence.memory.database import MemoryDatabase, run_now
from persistence.sql.audit import SqlAudit
from persistence.sql.usage import SqlUsage
from persistence.write_batch import REVIEW_COLUMNS, review_rows
from sessions.model.audit import AuditRow
from sessions.model.events import Record
from sessions.model.journal_types import Head, Page, UsageRow
from sessions.model.reviews import Case
from sessions.model.types import SessionId, SessionKey, TenantId

MANY: Final = 1 << 40


def is_empty(database: MemoryDatabase, *tables: str) -> bool:
    return not any(database.query(f"SELECT 1 FROM {table} LIMIT 1") for table in tables)


def keys_in(database: MemoryDatabase) -> list[SessionKey]:
    rows = database.query("SELECT tenant, session FROM heads WHERE tenant <> '' ORDER BY created_at")
    return [SessionKey(TenantId(tenant), SessionId(session)) for tenant, session in rows]


def head_of(database: MemoryDatabase, key: SessionKey) -> Head | None:
    return run_now(database.journal.head(key))


def page_of(database: MemoryDatabase, key: SessionKey, after: int = 0, limit: int = MANY) -> Page | None:
    return run_now(database.journal.read(key, after=after, limit=limit, bytes_max=MANY))


def records_of(database: MemoryDatabase, key: SessionKey) -> tuple[Record, ...]:
    page = page_of(database, key)
    return () if page is None else page.records


def lose_record(database: MemoryDatabase, key: SessionKey, offset: int) -> None:
    """Makes a hole in a log."""
    database.query('DELETE FROM events WHERE tenant = ?1 AND session = ?2 AND "offset" = ?3', *key, offset)


def usage_in(database: MemoryDatabase) -> list[UsageRow]:
    """All usage rows, in the order in which they came."""
    return [entry.row for entry in run_now(SqlUsage(database).unrelayed(limit=MANY))]


def audit_rows_of(database: MemoryDatabase, tenant: TenantId) -> Sequence[AuditRow]:
    return run_now(SqlAudit(database).rows(tenant, after=0, limit=MANY))


def change_audit_row(database: MemoryDatabase, tenant: TenantId, seq: int, column: str, value: object) -> None:
    """Does what a stranger with the file could do: the row is no longer what was written."""
    database.query("DROP TRIGGER IF EXISTS audit_is_not_changed")
    database.query(f"UPDATE audit SET {column} = ?1 WHERE tenant = ?2 AND seq = ?3", value, tenant, seq)


def put_case(database: MemoryDatabase, case: Case) -> None:
    """Adds a review case, whatever state it is in."""
    (row,) = review_rows(database.codec, [case])
    database.query(f"INSERT INTO reviews ({REVIEW_COLUMNS}) VALUES ({', '.join('?' * len(row))})", *row)
    state = (case.state, case.outcome, case.decided_at, case.decisions, case.told)
    database.query(
        "UPDATE reviews SET state = ?1, outcome = ?2, decided_at = ?3, decisions = ?4, told = ?5 WHERE id = ?6",
        *(*state, case.id),
    )
