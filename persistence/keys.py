"""Key stores: one data key per session, wrapped by the master key, kept apart from what it encrypts.

Destroying a key is what makes bytes unreadable wherever a copy of them may lie: KV that was spilled, Redis, a backup.
So a store is a database of its own, small, and not to be kept in the backups of anything else.

A row belongs to (session, master): replicas with masters of their own may share a store and never see each other's
keys, and a master that was replaced means new keys, never an error. Destroying takes the rows of all masters.

What SQLite deletes it overwrites (`secure_delete`); what a disk or its file system keeps below that is out of reach
for any program. Nothing here caches: a key that was destroyed by one process is gone for all at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from uuid import uuid4

import asyncpg
import msgspec

from persistence.master_key import KEY_BYTES, MasterKey
from persistence.sqlite.library import sqlite3
from sessions.model.errors import Unavailable
from sessions.model.types import SessionKey
from sessions.ports import DataKey

T = TypeVar("T")

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS data_keys (
    tenant  TEXT NOT NULL,
    session TEXT NOT NULL,
    master  TEXT NOT NULL,
    id      TEXT NOT NULL,
    wrapped {bytes} NOT NULL,
    PRIMARY KEY (tenant, session, master)
)"""


def _unavailable(exc: BaseException) -> Unavailable:
    return Unavailable("keys_unavailable", f"The key store does not answer ({type(exc).__name__}).")


class _WrappedKey(NamedTuple):
    id: str
    wrapped: bytes


def _new_key(master: MasterKey, key: SessionKey) -> _WrappedKey:
    name = uuid4().hex
    return _WrappedKey(name, master.wrap(os.urandom(KEY_BYTES), _associated_data(key, name)))


def _unwrap(master: MasterKey, key: SessionKey, row: _WrappedKey | None) -> DataKey | None:
    if row is None:
        return None
    secret = master.unwrap(row.wrapped, _associated_data(key, row.id))
    return None if secret is None else DataKey(row.id, secret)


def _associated_data(key: SessionKey, name: str) -> bytes:
    return msgspec.msgpack.encode((key.tenant, key.session, name))


class MemoryKeyStore:
    """For a journal in memory and for tests: gone with the process, and so is what it encrypted."""

    def __init__(self) -> None:
        self._keys: dict[SessionKey, DataKey] = {}

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def current(self, key: SessionKey) -> DataKey:
        return self._keys.setdefault(key, DataKey(uuid4().hex, os.urandom(KEY_BYTES)))

    async def find(self, key: SessionKey, key_id: str) -> DataKey | None:
        found = self._keys.get(key)
        return found if found is not None and found.id == key_id else None

    async def destroy(self, key: SessionKey) -> None:
        self._keys.pop(key, None)


class SqliteKeyStore:
    """A file beside the journal's, of one process. Calls run one after the other in threads and are never cut short."""

    def __init__(self, path: Path, master: MasterKey) -> None:
        self._path = path
        self._master = master
        self._lock = asyncio.Lock()
        self._database: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Raises Unavailable."""
        await self._run(self._open)

    async def close(self) -> None:
        if self._database is not None:
            await self._run(self._close)

    async def current(self, key: SessionKey) -> DataKey:
        return await self._run(lambda: self._current(key))

    async def find(self, key: SessionKey, key_id: str) -> DataKey | None:
        found = await self._run(lambda: self._find(key))
        return found if found is not None and found.id == key_id else None

    async def destroy(self, key: SessionKey) -> None:
        await self._run(lambda: self._destroy(key))

    async def _run(self, work: Callable[[], T]) -> T:
        async def locked() -> T:
            async with self._lock:
                return await asyncio.to_thread(work)

        try:
            return await asyncio.shield(locked())
        except sqlite3.Error as exc:
            raise _unavailable(exc) from exc

    # -- in a thread, one at a time ------------------------------------------------------------------

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))
        database = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA secure_delete = ON")
        database.execute(_SCHEMA.format(bytes="BLOB"))
        self._database = database

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _do(self, statement: str, *values: object) -> sqlite3.Cursor:
        if self._database is None:
            raise sqlite3.ProgrammingError("closed")
        return self._database.execute(statement, values)

    def _find(self, key: SessionKey) -> DataKey | None:
        row = self._do(
            "SELECT id, wrapped FROM data_keys WHERE tenant = ? AND session = ? AND master = ?",
            *key,
            self._master.id,
        ).fetchone()
        return _unwrap(self._master, key, _WrappedKey(*row) if row else None)

    def _current(self, key: SessionKey) -> DataKey:
        found = self._find(key)
        if found is None:  # none yet, or one that was tampered with
            new = _new_key(self._master, key)
            self._do(
                "INSERT OR REPLACE INTO data_keys VALUES (?, ?, ?, ?, ?)",
                *key,
                self._master.id,
                *new,
            )
            found = _unwrap(self._master, key, new)
            assert found is not None
        return found

    def _destroy(self, key: SessionKey) -> None:
        self._do("DELETE FROM data_keys WHERE tenant = ? AND session = ?", *key)


class PostgresKeyStore:
    """For a cluster: replicas with the same master read what any of them encrypted."""

    def __init__(self, dsn: str, master: MasterKey, *, schema: str = "sessile_keys", timeout_s: float = 10.0) -> None:
        self._dsn = dsn
        self._master = master
        self._schema = schema
        self._timeout_s = timeout_s
        self._pool: Any = None

    async def open(self) -> None:
        """Raises Unavailable."""
        try:
            self._pool = await asyncpg.create_pool(
                self._dsn, min_size=0, max_size=4, command_timeout=self._timeout_s, timeout=self._timeout_s
            )
            async with self._pool.acquire() as connection, connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", self._schema)
                await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{self._schema}"')
                await connection.execute(
                    _SCHEMA.format(bytes="BYTEA").replace("data_keys", f'"{self._schema}".data_keys')
                )
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as exc:
            await self.close()
            raise _unavailable(exc) from exc

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def current(self, key: SessionKey) -> DataKey:
        found = await self._find(key)
        while found is None:
            new = _new_key(self._master, key)
            # A row that this master cannot unwrap was tampered with: it is replaced. One that another process has
            # just made stays, and every process uses it.
            await self._do(
                f'INSERT INTO "{self._schema}".data_keys VALUES ($1, $2, $3, $4, $5)'
                " ON CONFLICT (tenant, session, master) DO NOTHING",
                *key,
                self._master.id,
                *new,
            )
            found = await self._find(key)
            if found is None:
                await self.destroy(key)
        return found

    async def find(self, key: SessionKey, key_id: str) -> DataKey | None:
        found = await self._find(key)
        return found if found is not None and found.id == key_id else None

    async def destroy(self, key: SessionKey) -> None:
        await self._do(f'DELETE FROM "{self._schema}".data_keys WHERE tenant = $1 AND session = $2', *key)

    async def _find(self, key: SessionKey) -> DataKey | None:
        rows = await self._do(
            f'SELECT id, wrapped FROM "{self._schema}".data_keys WHERE tenant = $1 AND session = $2 AND master = $3',
            *key,
            self._master.id,
        )
        return _unwrap(self._master, key, _WrappedKey(*rows[0]) if rows else None)

    async def _do(self, statement: str, *values: object) -> list[Any]:
        if self._pool is None:
            raise Unavailable("keys_unavailable", "The key store is not open.")
        try:
            rows: list[Any] = await self._pool.fetch(statement, *values)
            return rows
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as exc:
            raise _unavailable(exc) from exc
