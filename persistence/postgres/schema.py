"""The tables in PostgreSQL, and how they got there.

All of it lives in a schema of its own. `migrations/NNN.sql` takes it to version NNN; a database with a newer version is
refused. Migrating runs under an advisory lock, so any number of processes may start at once.

Keys compare by bytes (`COLLATE "C"`), as in the other stores. `heads.empty` is `top = 0` in a column of its own: an
index that spoke of `top` would make every append touch every index of its row. For the same reason `updated_at` moves
only with the appends that carry a head patch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import asyncpg

from persistence.sql.migrations import read_migrations
from sessions.model.errors import Unavailable

ADVISORY_LOCK: Final = 0x5365731E
MIGRATIONS: Final = Path(__file__).with_name("migrations")


async def migrate(connection: asyncpg.Connection[Any], schema: str) -> None:
    """Brings the schema to the newest version. Raises Unavailable when it is newer than that."""
    migrations = read_migrations(MIGRATIONS)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", ADVISORY_LOCK)
        await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        version = 0
        if await connection.fetchval("SELECT to_regclass('store')") is not None:
            version = await connection.fetchval("SELECT version FROM store")
        if version > len(migrations):
            raise Unavailable(
                "journal_newer",
                f"The database was written by a newer version of this server (schema {version}, this one knows "
                f"{len(migrations)}). Start that version, or name another database.",
                retryable=False,
            )
        for statements in migrations[version:]:
            await connection.execute(statements)
        if version < len(migrations):
            await connection.execute("UPDATE store SET version = $1", len(migrations))
