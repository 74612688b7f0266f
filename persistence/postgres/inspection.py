"""Inspects a PostgreSQL server from outside: its schema's version, clock, standbys and archive. Changes nothing.

It does not open the journal, because that would migrate the schema, which only servers may do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import asyncpg
import msgspec

from persistence.postgres.error_mapping import FAILURES
from persistence.postgres.schema import MIGRATIONS, versions_of
from persistence.sql.migrations import read_migrations

TIMEOUT_S: Final = 5.0
SCHEMA: Final = "sessile"

_SERVER: Final = """
SELECT extract(epoch FROM clock_timestamp())::float8 AS now, pg_is_in_recovery() AS standby,
    current_setting('fsync') = 'on' AS fsync, to_regclass($1) IS NOT NULL AS made,
    (SELECT failed_count > 0 AND last_failed_time > coalesce(last_archived_time, '-infinity')
     FROM pg_stat_archiver) AS archive_fails
"""
_STANDBYS: Final = """
SELECT application_name AS name, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn), 0)::bigint AS behind_bytes,
    coalesce(extract(epoch FROM replay_lag), 0)::float8 AS behind_s, sync_state
FROM pg_stat_replication
"""


class StandbyInspection(msgspec.Struct, frozen=True, kw_only=True):
    """A standby as its primary sees it."""

    name: str
    behind_bytes: int
    behind_s: float
    synchronous: bool


class PostgresInspection(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a server now. If `failure` is set it says why nothing else is known."""

    failure: str = ""
    ahead_s: float = 0.0  # the server's clock minus ours
    standby: bool = False
    fsync: bool = True
    archive_fails: bool = False
    schema_version: int = 0  # the version it was migrated to; 0: there is no schema yet
    schema_required: int = 0  # the version that a program must know to use it
    schema_known: int = 0  # the newest that this program knows
    standbys: tuple[StandbyInspection, ...] = ()


async def inspect_postgres(dsn: str, now_s: Callable[[], float]) -> PostgresInspection:
    """Inspects a server. Errors of the server or network are not raised, but described in `failure`. `now_s` returns
    our wall clock in Unix seconds."""
    try:
        connection = await asyncpg.connect(
            dsn, timeout=TIMEOUT_S, command_timeout=TIMEOUT_S, server_settings={"search_path": SCHEMA}
        )
    except (*FAILURES, ValueError) as error:
        return PostgresInspection(failure=str(error) or type(error).__name__)
    try:
        sent = now_s()
        server: Any = await connection.fetchrow(_SERVER, f"{SCHEMA}.store")
        ours = (sent + now_s()) / 2
        required, version = await versions_of(connection) if server["made"] else (0, 0)
        rows = [] if server["standby"] else await connection.fetch(_STANDBYS)
    except FAILURES as error:
        return PostgresInspection(failure=str(error) or type(error).__name__)
    finally:
        connection.terminate()
    return PostgresInspection(
        ahead_s=server["now"] - ours,
        standby=server["standby"],
        fsync=server["fsync"],
        archive_fails=bool(server["archive_fails"]),
        schema_version=version,
        schema_required=required,
        schema_known=len(read_migrations(MIGRATIONS)),
        standbys=tuple(
            StandbyInspection(
                name=row["name"],
                behind_bytes=row["behind_bytes"],
                behind_s=row["behind_s"],
                synchronous=row["sync_state"] in ("sync", "quorum"),
            )
            for row in rows
        ),
    )
