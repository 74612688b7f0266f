"""Notices that a PostgreSQL store went back in time, and makes a new incarnation of it.

`store.identity` names the physical store: system identifier, timeline, database, table. It differs after a standby was
promoted, after a recovery to a point in time, and after a dump was loaded elsewhere. It is the same in an older copy of
the same files, and in a dump that was loaded in place; these are noticed by counting. Each process has a row in
`writers` whose position every one of its batches moves, and remembers that position: in memory, in case the server is
restored under it, and in a marker file for its own next start. A row whose position is lower than what was
acknowledged, or that is gone, proves that the store went back. Every connection is checked when it is made, and a
restore breaks all connections.

Whoever notices makes a new incarnation, raises every fence, and says so in `store`; others adopt it when they
reconnect, because its number is greater than theirs. What cannot be noticed: the same files put back while every
process is down and every marker is lost. Then run `UPDATE sessile.store SET identity = ''` before the first one starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import asyncpg
import msgspec

from persistence.postgres.schema import ADVISORY_LOCK
from persistence.validation import FENCES_PER_INCARNATION


class KnownPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A process's knowledge of the store and of its own row in it, by which it notices that the store was restored."""

    writer: str
    incarnation: str = ""
    acknowledged: int = 0  # commits of this writer that were acknowledged


READ_POSITION: Final = """
SELECT store.identity, store.incarnation, writers.commits,
    (SELECT system_identifier FROM pg_control_system())
    || '.' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
    || '.' || (SELECT oid FROM pg_database WHERE datname = current_database())
    || '.' || 'store'::regclass::oid AS now
FROM store LEFT JOIN writers ON writers.id = $1
"""


def was_restored(found: Any, known: KnownPosition) -> bool:
    """Returns whether the store lost writes of this process, or is a copy that was promoted, recovered or loaded
    elsewhere."""
    if found["identity"] != found["now"]:
        return True
    if not known.incarnation:
        return False
    if found["incarnation"] == known.incarnation:
        return found["commits"] is None or found["commits"] < known.acknowledged
    return incarnation_number(found["incarnation"]) <= incarnation_number(known.incarnation)


def incarnation_number(incarnation: str) -> int:
    """Returns the number with which an incarnation's name begins: its place in the store's history."""
    return int(incarnation.partition("-")[0] or 0)


async def settle_incarnation(
    connection: asyncpg.Connection[Any], known: KnownPosition, new_id: Callable[[], str]
) -> KnownPosition:
    """Checks a new connection, and gives the store a new incarnation if it was restored. Returns what is known now.

    Costs one round trip if nothing changed, which is nearly always.
    """
    found: Any = await connection.fetchrow(READ_POSITION, known.writer)
    if found["incarnation"] == known.incarnation and not was_restored(found, known):
        return known
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", ADVISORY_LOCK)
        found = await connection.fetchrow(READ_POSITION, known.writer)
        incarnation: str = found["incarnation"]
        if was_restored(found, known):
            number = 1 + max(incarnation_number(incarnation), incarnation_number(known.incarnation))
            incarnation = f"{number}-{new_id()}"
            await connection.execute("UPDATE store SET identity = $1, incarnation = $2", found["now"], incarnation)
            await connection.execute("SET LOCAL statement_timeout = 0")  # it touches every head there is
            await connection.execute("UPDATE heads SET fence = fence + $1", FENCES_PER_INCARNATION, timeout=3600)
        await connection.execute(
            "INSERT INTO writers (id, commits) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE"
            " SET commits = greatest(writers.commits, excluded.commits), seen_at = now()",
            known.writer,
            known.acknowledged,
        )
    return msgspec.structs.replace(known, incarnation=incarnation)
