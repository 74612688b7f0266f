"""API keys in the journal's database: in memory, in SQLite, in PostgreSQL. The port is
`sessions.model.api_keys.ApiKeyStore`.

Versions count changes to the one table. In SQLite there is one writer; in PostgreSQL a change locks the table against
other changes (not against reads) until it commits, so that versions become visible in their order. Keys change seldom.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from persistence.memory.journal import MemoryJournal
from persistence.postgres.audit_rows import chain_entries
from persistence.postgres.journal import PostgresJournal
from persistence.sqlite.audit_rows import chain
from persistence.sqlite.journal import SqliteJournal
from persistence.sqlite.library import sqlite3
from sessions.model.api_keys import KEPT_MS, KEYS_MAX, ApiKey, key_id_conflict, too_many_keys
from sessions.model.audit import Audited
from sessions.model.errors import SessileError
from sessions.model.types import TenantId, UnixMs

COLUMNS: Final = (
    "version",
    "id",
    "digest",
    "tenant",
    "role",
    "end_user",
    "scopes",
    "name",
    "created_at",
    "created_by",
    "expires_at",
    "revoked_at",
)
_ALL: Final = ", ".join(COLUMNS)
_NEXT: Final = "(SELECT coalesce(max(version), 0) + 1 FROM api_keys)"
# What has ended long ago, but never the newest row: versions go on from it.
_FORGET: Final = (
    "DELETE FROM api_keys WHERE coalesce(revoked_at, expires_at) < {0}"
    " AND version < (SELECT max(version) FROM api_keys)"
)


def _row(key: ApiKey) -> tuple[Any, ...]:
    scopes = " ".join(key.scopes)
    ends = (key.expires_at, key.revoked_at)
    return (key.id, key.digest, key.tenant, key.role, key.user, scopes, key.name, key.created_at, key.created_by, *ends)


def _key(row: Any) -> ApiKey:
    values = dict(zip(COLUMNS, tuple(row), strict=True))
    values["user"] = values.pop("end_user")
    values["scopes"] = values["scopes"].split()
    values["digest"] = bytes(values["digest"])
    return msgspec.convert(values, ApiKey)


class MemoryApiKeys:
    """Gone with the journal that it belongs to."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._store = journal.store
        self._rows = journal.store.api_keys

    def _note(self, key: ApiKey, audit: Audited | None) -> None:
        if audit is not None:
            self._store.chain([self._store.sealer.entry(key.tenant, audit)])

    async def add(self, key: ApiKey, *, audit: Audited | None = None) -> ApiKey:
        if key.id in self._rows:
            raise key_id_conflict()
        newest = self._newest()
        for old in list(self._rows.values()):
            ended = old.expires_at if old.revoked_at is None else old.revoked_at
            if ended is not None and ended < key.created_at - KEPT_MS and old.version < newest:
                del self._rows[old.id]
        if len(self._rows) >= KEYS_MAX:
            raise too_many_keys()
        self._rows[key.id] = stored = msgspec.structs.replace(key, version=newest + 1)
        self._note(key, audit)
        return stored

    async def revoke(self, key_id: str, *, at: UnixMs, audit: Audited | None = None) -> ApiKey | None:
        key = self._rows.get(key_id)
        if key is not None and key.revoked_at is None:
            key = msgspec.structs.replace(key, revoked_at=at, version=self._newest() + 1)
            self._rows[key_id] = key
            self._note(key, audit)
        return key

    async def changes(self, *, after: int, limit: int) -> list[ApiKey]:
        behind = [key for key in self._rows.values() if key.version > after]
        return sorted(behind, key=lambda key: key.version)[:limit]

    def _newest(self) -> int:
        return max((key.version for key in self._rows.values()), default=0)


class SqliteApiKeys:
    """On the journal's writer, as one more kind of write of its group commit."""

    def __init__(self, journal: SqliteJournal) -> None:
        self._journal = journal

    def _note(self, connection: sqlite3.Connection, tenant: TenantId, audit: Audited | None) -> None:
        if audit is not None:
            sealer = self._journal.sealer
            chain(connection, sealer, [sealer.entry(tenant, audit)])

    async def add(self, key: ApiKey, *, audit: Audited | None = None) -> ApiKey:
        def step(connection: sqlite3.Connection) -> ApiKey | SessileError:
            connection.execute(_FORGET.format("?"), (key.created_at - KEPT_MS,))
            ((count, same),) = connection.execute("SELECT count(*), sum(id = ?) FROM api_keys", (key.id,))
            if same:
                return key_id_conflict()
            if count >= KEYS_MAX:
                return too_many_keys()
            marks = ", ".join("?" * (len(COLUMNS) - 1))
            (row,) = connection.execute(
                f"INSERT INTO api_keys ({_ALL}) VALUES ({_NEXT}, {marks}) RETURNING {_ALL}", _row(key)
            ).fetchall()
            self._note(connection, key.tenant, audit)
            return _key(row)

        answer = await self._journal.job(step)
        if isinstance(answer, SessileError):
            raise answer
        assert isinstance(answer, ApiKey)
        return answer

    async def revoke(self, key_id: str, *, at: UnixMs, audit: Audited | None = None) -> ApiKey | None:
        def step(connection: sqlite3.Connection) -> ApiKey | None:
            done = connection.execute(
                f"UPDATE api_keys SET version = {_NEXT}, revoked_at = ? WHERE id = ? AND revoked_at IS NULL",
                (at, key_id),
            )
            rows = connection.execute(f"SELECT {_ALL} FROM api_keys WHERE id = ?", (key_id,)).fetchall()
            key = _key(rows[0]) if rows else None
            if key is not None and done.rowcount:
                self._note(connection, key.tenant, audit)
            return key

        answer = await self._journal.job(step)
        assert answer is None or isinstance(answer, ApiKey)
        return answer

    async def changes(self, *, after: int, limit: int) -> list[ApiKey]:
        rows = await self._journal.rows(
            f"SELECT {_ALL} FROM api_keys WHERE version > ? ORDER BY version LIMIT ?", (after, limit)
        )
        return [_key(row) for row in rows]


class PostgresApiKeys:
    """In the journal's schema, through its pool."""

    def __init__(self, journal: PostgresJournal) -> None:
        self._journal = journal

    async def add(self, key: ApiKey, *, audit: Audited | None = None) -> ApiKey:
        async with self._journal.transaction() as connection:
            await connection.execute("LOCK TABLE api_keys IN SHARE ROW EXCLUSIVE MODE")
            await connection.execute(_FORGET.format("$1"), key.created_at - KEPT_MS)
            count = await connection.fetchval("SELECT count(*) FROM api_keys")
            if await connection.fetchval("SELECT true FROM api_keys WHERE id = $1", key.id):
                raise key_id_conflict()
            if count >= KEYS_MAX:
                raise too_many_keys()
            marks = ", ".join(f"${number}" for number in range(1, len(COLUMNS)))
            row = await connection.fetchrow(
                f"INSERT INTO api_keys ({_ALL}) VALUES ({_NEXT}, {marks}) RETURNING {_ALL}", *_row(key)
            )
            await self._note(connection, key.tenant, audit)
            return _key(row)

    async def revoke(self, key_id: str, *, at: UnixMs, audit: Audited | None = None) -> ApiKey | None:
        async with self._journal.transaction() as connection:
            await connection.execute("LOCK TABLE api_keys IN SHARE ROW EXCLUSIVE MODE")
            done = await connection.fetchval(
                f"UPDATE api_keys SET version = {_NEXT}, revoked_at = $1 WHERE id = $2 AND revoked_at IS NULL"
                " RETURNING true",
                at,
                key_id,
            )
            row = await connection.fetchrow(f"SELECT {_ALL} FROM api_keys WHERE id = $1", key_id)
            key = None if row is None else _key(row)
            if key is not None and done:
                await self._note(connection, key.tenant, audit)
            return key

    async def _note(self, connection: Any, tenant: TenantId, audit: Audited | None) -> None:
        if audit is not None:
            sealer = self._journal.sealer
            await chain_entries(connection, sealer, [sealer.entry(tenant, audit)])

    async def changes(self, *, after: int, limit: int) -> list[ApiKey]:
        rows = await self._journal.rows(
            f"SELECT {_ALL} FROM api_keys WHERE version > $1 ORDER BY version LIMIT $2", after, limit
        )
        return [_key(row) for row in rows]
