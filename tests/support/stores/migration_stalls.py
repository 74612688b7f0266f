"""Runs every migration on a journal that is full and in use, and measures how long its writer has to wait.

The journal is filled at version 1; from then on a writer appends, one event a transaction, as fast as it can, and on
PostgreSQL a reader holds every table for a moment again and again, as a backup does. Each migration then runs by
itself.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiosqlite
import asyncpg
import msgspec

from persistence.postgres import schema as postgres_module
from persistence.sql.migrations import read_migrations
from persistence.sqlite import schema as sqlite_module
from persistence.sqlite.library import sqlite3

postgres_schema: Any = postgres_module  # their MIGRATIONS are shortened here
sqlite_schema: Any = sqlite_module

PER_SESSION: Final = 50
BODY_BYTES: Final = 120
HELD_S: Final = 0.3  # by the reader, and as long between
SCHEMA: Final = "stalls"
PATIENCE_S: Final = 60.0

_FILL: Final = """
INSERT INTO heads (tenant, session, fence, top, {empty}epoch, incarnation, owner, key_id, about, created_at, updated_at)
    SELECT 't', 's' || n, 1, {per}, {false}'e', 'i', 'o', '', {about}, n, n FROM {sessions};
INSERT INTO events (tenant, session, "offset", key_id, body)
    SELECT 't', 's' || (n / {per}), n % {per} + 1, '', {body} FROM {events};
INSERT INTO commands (tenant, session, principal, command, at, digest, answer)
    SELECT 't', 's' || n, 'p', 'c', n, {about}, {about} FROM {sessions};
INSERT INTO usage (tenant, session, response, principal_key, principal_role, model, status, input_tokens, output_tokens,
        cached_tokens, reasoning_tokens, recomputed_tokens, withheld_tokens, at)
    SELECT 't', 's' || n, 'r', 'k', 'user', 'm', 'completed', 1, 1, 0, 0, 0, 0, n FROM {sessions};
"""


class Stall(msgspec.Struct):
    """A migration, how long it took, and the longest wait of a writer meanwhile."""

    number: int
    took_s: float
    longest_s: float
    appends: int


class _Writer:
    """What a writer has waited for each of its appends."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.appends = 0
        self._more = threading.Condition()

    def count(self, begun: float) -> None:
        with self._more:
            self.longest_s = max(self.longest_s, time.perf_counter() - begun)
            self.appends += 1
            self._more.notify_all()

    def await_more(self, count: int) -> None:
        """Blocks until there were so many more."""
        with self._more:
            enough = self.appends + count
            assert self._more.wait_for(lambda: self.appends >= enough, PATIENCE_S), "the writer stands still"


def _first(migrations: Path, number: int, folder: Path) -> Path:
    """A folder with so many of the migrations."""
    part = folder / f"{migrations.parent.name}-{number}"
    part.mkdir()
    for file in sorted(migrations.glob("*.sql"))[:number]:
        shutil.copy(file, part)
    return part


async def _each(
    module: Any, folder: Path, writer: _Writer, migrate: Callable[[], Coroutine[Any, Any, None]]
) -> list[Stall]:
    """Every migration from the second on, while the writer writes."""
    stalls, whole = [], module.MIGRATIONS
    try:
        for number in range(2, len(read_migrations(whole)) + 1):
            module.MIGRATIONS = _first(whole, number, folder)
            writer.longest_s, writer.appends, begun = 0.0, 0, time.perf_counter()
            await migrate()
            took_s = time.perf_counter() - begun
            await asyncio.to_thread(writer.await_more, 2)  # one that waits now has waited for this migration
            stalls.append(Stall(number, took_s, writer.longest_s, writer.appends))
    finally:
        module.MIGRATIONS = whole
    return stalls


# -- SQLite --------------------------------------------------------------------------------------------------------


def _series(count: int) -> str:
    steps = f"SELECT 0 UNION ALL SELECT n + 1 FROM series WHERE n < {count - 1}"
    return f"(WITH RECURSIVE series(n) AS ({steps}) SELECT n FROM series)"


async def sqlite_stalls(folder: Path, *, events: int) -> list[Stall]:
    path, whole = folder / "journal.db", sqlite_schema.MIGRATIONS
    migrating = await aiosqlite.Connection(lambda: sqlite3.connect(path, isolation_level=None, timeout=60), 64)
    try:
        await migrating.execute_fetchall("PRAGMA journal_mode = WAL")
        sqlite_schema.MIGRATIONS = _first(whole, 1, folder)
        try:
            await sqlite_schema.migrate(migrating, path)
        finally:
            sqlite_schema.MIGRATIONS = whole
        parts = {
            "empty": "", "false": "", "per": PER_SESSION, "about": "x''", "body": f"randomblob({BODY_BYTES})",
            "sessions": _series(max(1, events // PER_SESSION)), "events": _series(events),
        }  # fmt: skip
        await migrating.executescript(f"BEGIN;{_FILL.format(**parts)}COMMIT;")
        writer, ended = _Writer(), threading.Event()
        writing = asyncio.create_task(asyncio.to_thread(_append_to_sqlite, path, writer, ended))
        try:
            return await _each(sqlite_schema, folder, writer, lambda: sqlite_schema.migrate(migrating, path))
        finally:
            ended.set()
            await writing
    finally:
        await migrating.close()


def _append_to_sqlite(path: Path, writer: _Writer, ended: threading.Event) -> None:
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        top = PER_SESSION
        while not ended.is_set():
            begun, top = time.perf_counter(), top + 1
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE heads SET top = ? WHERE tenant = 't' AND session = 's0' AND fence = 1", (top,))
            connection.execute("INSERT INTO events VALUES ('t', 's0', ?, '', x'00')", (top,))
            connection.execute("COMMIT")
            writer.count(begun)
    finally:
        connection.close()


# -- PostgreSQL ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn, server_settings={"search_path": SCHEMA})
    try:
        yield connection
    finally:
        connection.terminate()


async def postgres_stalls(dsn: str, folder: Path, *, events: int) -> list[Stall]:
    whole = postgres_schema.MIGRATIONS
    async with _connected(dsn) as migrating, _connected(dsn) as writes, _connected(dsn) as reads:
        postgres_schema.MIGRATIONS = _first(whole, 1, folder)
        try:
            await postgres_schema.migrate(migrating, SCHEMA)
        finally:
            postgres_schema.MIGRATIONS = whole
        parts = {
            "empty": "empty, ", "false": "false, ", "per": PER_SESSION, "about": "''::bytea",
            "body": f"decode(repeat('ab', {BODY_BYTES}), 'hex')",
            "sessions": f"generate_series(0, {max(1, events // PER_SESSION) - 1}) AS n",
            "events": f"generate_series(0, {events - 1}) AS n",
        }  # fmt: skip
        await migrating.execute(_FILL.format(**parts), timeout=600)
        writer = _Writer()
        tasks = [asyncio.create_task(_append_to_postgres(writes, writer)), asyncio.create_task(_hold(reads))]
        try:
            return await _each(postgres_schema, folder, writer, lambda: postgres_schema.migrate(migrating, SCHEMA))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _append_to_postgres(connection: Any, writer: _Writer) -> None:
    top = PER_SESSION
    while True:
        begun, top = time.perf_counter(), top + 1
        async with connection.transaction():
            await connection.execute(
                "UPDATE heads SET top = $1 WHERE tenant = 't' AND session = 's0' AND fence = 1", top
            )
            await connection.execute("INSERT INTO events VALUES ('t', 's0', $1, '', '')", top)
            await connection.execute(
                "INSERT INTO usage (tenant, session, response, principal_key, principal_role, model, status,"
                " input_tokens, output_tokens, cached_tokens, reasoning_tokens, recomputed_tokens, withheld_tokens, at)"
                " VALUES ('t', 's0', $1, 'k', 'user', 'm', 'completed', 1, 1, 0, 0, 0, 0, 1)",
                f"w{top}",
            )
        writer.count(begun)


async def _hold(connection: Any) -> None:
    """Reads as a backup does: each table is held until the transaction ends."""
    loop = asyncio.get_running_loop()
    while True:
        async with connection.transaction():
            for table in ("heads", "events", "usage", "commands", "store"):
                await connection.fetch(f"SELECT 1 FROM {table} LIMIT 1")
            held = loop.create_future()
            loop.call_later(HELD_S, held.cancel)
            await asyncio.wait((held,))
        pause = loop.create_future()
        loop.call_later(HELD_S, pause.cancel)
        await asyncio.wait((pause,))


async def rewritten_by_each(dsn: str, folder: Path) -> dict[int, set[str]]:
    """The tables of an empty journal that a migration writes anew, or builds an index on, though they were there."""
    whole, changed = postgres_schema.MIGRATIONS, {}
    states = (
        "SELECT c.relname AS name, c.relfilenode::text || ' ' || (SELECT count(*) FROM pg_index i WHERE"
        " i.indrelid = c.oid)::text AS state FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace"
        f" WHERE s.nspname = '{SCHEMA}' AND c.relkind = 'r'"
    )
    async with _connected(dsn) as connection:
        before: dict[str, str] = {}
        try:
            for number in range(1, len(read_migrations(whole)) + 1):
                postgres_schema.MIGRATIONS = _first(whole, number, folder)
                await postgres_schema.migrate(connection, SCHEMA)
                after = {row["name"]: row["state"] for row in await connection.fetch(states)}
                changed[number] = {name for name in before if after.get(name) != before[name]}
                before = after
        finally:
            postgres_schema.MIGRATIONS = whole
    return changed
