"""The tables in PostgreSQL, and how they got there.

All of it lives in a schema of its own. `migrations/NNN.sql` takes it to version NNN, in a transaction of its own under
an advisory lock, so any number of processes may start at once. `store.version` is the version that a program has to
know to use the database, `store.applied` (from 015 on) how far it was migrated; one that requires more than this
program knows is refused.

Other processes go on writing meanwhile. While a change of a table waits for its lock, all later writers of the table
wait behind it; so it gives up after `LOCK_WAIT_S` and tries again.

Keys compare by bytes (`COLLATE "C"`), as in the other stores. `heads.empty` is `top = 0` in a column of its own: an
index that spoke of `top` would make every append touch every index of its row. For the same reason `updated_at` moves
only with the appends that carry a head patch.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import asyncpg
import structlog

from persistence.sql.migrations import read_migrations, required_version
from sessions.backoff import Backoff
from sessions.model.errors import Unavailable

log = structlog.get_logger(__name__)

ADVISORY_LOCK: Final = 0x5365731E
MIGRATIONS: Final = Path(__file__).with_name("migrations")
LOCK_WAIT_S: Final = 0.25
ATTEMPTS: Final = 60
PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
MIGRATION_S: Final = 3600.0  # a migration may take long; what it locks it locks briefly (docs/upgrading.md)

_APPLIED: Final = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'store'::regclass AND attname = 'applied'"


async def migrate(connection: asyncpg.Connection[Any], schema: str) -> None:
    """Brings the schema to the newest version. Raises Unavailable when it requires a newer program."""
    migrations = read_migrations(MIGRATIONS)
    backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S)
    for attempt in range(ATTEMPTS):
        try:
            while await _one_migration(connection, schema, migrations):
                backoff.reset()
            return
        except asyncpg.LockNotAvailableError:
            log.info("migration_waits", attempt=attempt + 1)
            await asyncio.sleep(backoff.next_s())
    raise Unavailable("journal_busy", "The database was in use all the time, so that it could not be migrated.")


async def _one_migration(connection: asyncpg.Connection[Any], schema: str, migrations: list[str]) -> bool:
    """Applies the next migration; returns False if there is none left. Raises LockNotAvailableError, Unavailable."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", ADVISORY_LOCK)
        await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        required, applied = await versions_of(connection)
        if required > len(migrations):
            raise Unavailable(
                "journal_newer",
                f"The database needs a newer version of this server (schema {required}, this one knows "
                f"{len(migrations)}). Start that version, or name another database.",
                retryable=False,
            )
        if applied >= len(migrations):
            return False
        await connection.execute("SET LOCAL statement_timeout = 0")
        await connection.execute(f"SET LOCAL lock_timeout = {round(LOCK_WAIT_S * 1000)}")
        await connection.execute(migrations[applied], timeout=MIGRATION_S)
        done = migrations[: applied + 1]
        await connection.execute("UPDATE store SET version = $1", required_version(done))
        if await connection.fetchval(_APPLIED):
            await connection.execute("UPDATE store SET applied = $1", len(done))
        return True


async def versions_of(connection: asyncpg.Connection[Any]) -> tuple[int, int]:
    """Returns the version that a program must know to use the connection's schema, and the version that the schema was
    migrated to; both 0 if it is empty."""
    if await connection.fetchval("SELECT to_regclass('store')") is None:
        return 0, 0
    required: int = await connection.fetchval("SELECT version FROM store")
    applied: int = await connection.fetchval("SELECT applied FROM store") if await connection.fetchval(_APPLIED) else 0
    return required, max(required, applied)
