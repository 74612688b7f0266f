"""Purging in PostgreSQL, in transactions of a few thousand rows, so that appends come in between.

If one transaction is not enough, the first deletes the session and fences its owner, so that nobody reads a log with a
gap. The last one deletes the session's head and records that in the tenant's audit chain. It locks the chain first, as
every writer of a chain does.
"""

from __future__ import annotations

from typing import Any, Final

from persistence.postgres import statements as sql
from persistence.postgres.audit_rows import chain_entries, lock_chain
from persistence.validation import purged_row
from sessions.model.audit import Sealer
from sessions.model.journal_types import Due
from sessions.model.types import SessionKey, UnixMs

PURGE_ROWS: Final = 5_000


async def purge_session(connection: Any, key: SessionKey, due: Due, sealer: Sealer, at: UnixMs) -> bool:
    """Purges a session; returns False if it is not due any more."""
    more = True
    while more:
        async with connection.transaction():
            if await _reason(connection, key, due) is None:
                return False
            more = await connection.fetchval(sql.PURGE_EVENTS, *key, PURGE_ROWS) == PURGE_ROWS
            if more:
                await connection.execute(sql.PURGE_BEGUN, *key, at)
    async with connection.transaction():
        await lock_chain(connection, key.tenant)
        found = await _reason(connection, key, due)
        if found is None:
            return False
        reason, user = found
        for table in ("events", "commands", "responses", "reviews", "shares", "push_outbox", "snapshots", "heads"):
            await connection.execute(f"DELETE FROM {table} WHERE tenant = $1 AND session = $2", *key)
        if reason != "empty":
            await chain_entries(connection, sealer, [sealer.entry(key.tenant, purged_row(key, user, reason, at))])
    return True


async def _reason(connection: Any, key: SessionKey, due: Due) -> tuple[str, str | None] | None:
    """Locks a session's head; returns why the session is due and its end user, or None if it is not due."""
    row = await connection.fetchrow(sql.STANDING, *key)
    if row is None:
        return None
    names = ("top", "listed", "open", "updated_at", "deleted_at")
    reason = due.reason(user=row["end_user"], **{name: row[name] for name in names})
    return None if reason is None else (reason, row["end_user"])


async def purge_commands(connection: Any, before: int) -> None:
    """Deletes commands from before the time `before`, and rows of writers that were not seen for long."""
    while await connection.fetchval(sql.PURGE_COMMANDS, before, PURGE_ROWS) == PURGE_ROWS:
        pass
    await connection.execute(sql.PURGE_WRITERS)
