"""End users in the journal's database: in memory, in SQLite, in PostgreSQL. The port is
`sessions.governance.end_user_data.EndUserStore`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from persistence.memory.journal import MemoryJournal
from persistence.postgres import statements as postgres_statements
from persistence.postgres.audit_rows import chain_entries
from persistence.postgres.journal import PostgresJournal
from persistence.sqlite import statements as sqlite_statements
from persistence.sqlite.audit_rows import chain
from persistence.sqlite.journal import SqliteJournal
from persistence.sqlite.library import sqlite3
from persistence.validation import FIRST_KEY, check_text
from sessions.governance.end_user_data import EndUserStore, Erasure
from sessions.model.audit import Audited, Sealer
from sessions.model.errors import BadInput
from sessions.model.journal_types import Head
from sessions.model.types import SessionKey, TenantId

_COLUMNS: Final = "tenant, end_user, asked_at, asked_by, released, done_at"
_PENDING: Final = f"SELECT {_COLUMNS} FROM erasures WHERE done_at IS NULL ORDER BY asked_at, tenant, end_user"
_UNDER_WAY: Final = f"SELECT {_COLUMNS} FROM erasures WHERE tenant = $1 AND end_user = $2 AND done_at IS NULL"
_INSERT: Final = f"INSERT INTO erasures ({_COLUMNS}) VALUES ($1, $2, $3, $4, '', NULL)"
_RELEASED: Final = (
    "UPDATE erasures SET released = $4 WHERE tenant = $1 AND end_user = $2 AND asked_at = $3 AND done_at IS NULL"
)
_DONE: Final = (
    "UPDATE erasures SET end_user = $4, done_at = $5"
    " WHERE tenant = $1 AND end_user = $2 AND asked_at = $3 AND done_at IS NULL"
)
USAGE_S: Final = 3600.0  # for taking a name out of all usage
# A key that is a user of its own is named like one.
_USAGE: Final = (
    "UPDATE usage SET principal_user = NULL,"
    " principal_key = CASE WHEN principal_key = principal_user THEN '' ELSE principal_key END"
    " WHERE tenant = $1 AND principal_user = $2"
)
_KEYS: Final = "SELECT id FROM api_keys WHERE tenant = $1 AND end_user = $2 ORDER BY id"
_NAMELESS_KEY: Final = (
    "UPDATE api_keys SET version = (SELECT max(version) + 1 FROM api_keys), end_user = $2, name = '',"
    " revoked_at = coalesce(revoked_at, $3) WHERE id = $1"
)


def _find_statement(user_names: int) -> str:
    names = ", ".join(f"${2 + n}" for n in range(user_names))
    return f"SELECT {_COLUMNS} FROM erasures WHERE tenant = $1 AND end_user IN ({names}) ORDER BY asked_at DESC LIMIT 1"


def _sqlite(statement: str) -> str:
    return statement.replace("$", "?")


def _erasure(row: Any) -> Erasure:
    tenant, user, asked_at, asked_by, released, done_at = tuple(row)
    return Erasure(
        tenant=TenantId(tenant),
        user=user,
        asked_at=asked_at,
        asked_by=asked_by,
        released=tuple(released.split("\n")) if released else (),
        done_at=done_at,
    )


def _stored_names(sealer: Sealer, tenant: TenantId, user: str) -> list[str]:
    return [user, *sealer.pseudonyms(tenant, user)]


class SqliteEndUsers:
    def __init__(self, journal: SqliteJournal) -> None:
        self._journal = journal

    async def heads(self, tenant: TenantId, user: str, *, after: SessionKey | None, limit: int) -> list[Head]:
        check_text(tenant, user)
        session = (after or FIRST_KEY).session
        ((text,),) = await self._journal.rows(sqlite_statements.HEADS_OF_USER, (tenant, user, session, limit))
        return sqlite_statements.heads_of(self._journal.codec, text)

    async def request_erasure(self, erasure: Erasure, audited: Audited) -> Erasure:
        check_text(erasure.tenant, erasure.user)

        def step(connection: sqlite3.Connection) -> Erasure:
            whose = (erasure.tenant, erasure.user)
            for row in connection.execute(_sqlite(_UNDER_WAY), whose).fetchall():
                return _erasure(row)
            connection.execute(_sqlite(_INSERT), (*whose, erasure.asked_at, erasure.asked_by))
            chain(connection, self._journal.sealer, [self._journal.sealer.entry(erasure.tenant, audited)])
            return erasure

        return cast(Erasure, await self._journal.job(step))

    async def find(self, tenant: TenantId, user: str) -> Erasure | None:
        check_text(tenant, user)
        names = _stored_names(self._journal.sealer, tenant, user)
        for row in await self._journal.rows(_sqlite(_find_statement(len(names))), (tenant, *names)):
            return _erasure(row)
        return None

    async def pending(self, *, limit: int) -> list[Erasure]:
        return [_erasure(row) for row in await self._journal.rows(_PENDING + " LIMIT ?", (limit,))]

    async def released(self, erasure: Erasure, replica: str) -> Erasure:
        def step(connection: sqlite3.Connection) -> Erasure:
            for row in connection.execute(_sqlite(_UNDER_WAY), (erasure.tenant, erasure.user)).fetchall():
                told = _with_replica(_erasure(row), replica)
                connection.execute(_sqlite(_RELEASED), _released_values(told))
                return told
            return erasure

        return cast(Erasure, await self._journal.job(step))

    async def finish(self, erasure: Erasure, audited: Audited) -> None:
        sealer = self._journal.sealer
        name = sealer.pseudonym(erasure.tenant, erasure.user)

        def step(connection: sqlite3.Connection) -> None:
            whose = (erasure.tenant, erasure.user)
            done = connection.execute(_sqlite(_DONE), (*whose, erasure.asked_at, name, audited.at))
            if not done.rowcount:
                return
            connection.execute(_sqlite(_USAGE), whose)
            for (key_id,) in connection.execute(_sqlite(_KEYS), whose).fetchall():
                connection.execute(_sqlite(_NAMELESS_KEY), (key_id, name, audited.at))
            chain(connection, sealer, [sealer.entry(erasure.tenant, audited)])

        await self._journal.job(step)


class PostgresEndUsers:
    def __init__(self, journal: PostgresJournal) -> None:
        self._journal = journal

    async def heads(self, tenant: TenantId, user: str, *, after: SessionKey | None, limit: int) -> list[Head]:
        check_text(tenant, user)
        session = (after or FIRST_KEY).session
        rows = await self._journal.rows(postgres_statements.HEADS_OF_USER, tenant, user, session, limit)
        return [postgres_statements.head_of(self._journal.codec, row) for row in rows]

    async def request_erasure(self, erasure: Erasure, audited: Audited) -> Erasure:
        check_text(erasure.tenant, erasure.user)
        sealer = self._journal.sealer
        async with self._journal.transaction() as connection:
            await connection.execute("LOCK TABLE erasures IN SHARE ROW EXCLUSIVE MODE")
            row = await connection.fetchrow(_UNDER_WAY, erasure.tenant, erasure.user)
            if row is not None:
                return _erasure(row)
            await connection.execute(_INSERT, erasure.tenant, erasure.user, erasure.asked_at, erasure.asked_by)
            await chain_entries(connection, sealer, [sealer.entry(erasure.tenant, audited)])
            return erasure

    async def find(self, tenant: TenantId, user: str) -> Erasure | None:
        check_text(tenant, user)
        names = _stored_names(self._journal.sealer, tenant, user)
        for row in await self._journal.rows(_find_statement(len(names)), tenant, *names):
            return _erasure(row)
        return None

    async def pending(self, *, limit: int) -> list[Erasure]:
        return [_erasure(row) for row in await self._journal.rows(_PENDING + " LIMIT $1", limit)]

    async def released(self, erasure: Erasure, replica: str) -> Erasure:
        async with self._journal.transaction() as connection:
            row = await connection.fetchrow(_UNDER_WAY + " FOR UPDATE", erasure.tenant, erasure.user)
            if row is None:
                return erasure
            told = _with_replica(_erasure(row), replica)
            await connection.execute(_RELEASED, *_released_values(told))
            return told

    async def finish(self, erasure: Erasure, audited: Audited) -> None:
        sealer = self._journal.sealer
        name = sealer.pseudonym(erasure.tenant, erasure.user)
        whose = (erasure.tenant, erasure.user)
        async with self._journal.transaction() as connection:  # by itself: it goes over all usage of the tenant
            await connection.execute("SET LOCAL statement_timeout = 0")
            await connection.execute(_USAGE, *whose, timeout=USAGE_S)
        async with self._journal.transaction() as connection:
            await connection.execute("LOCK TABLE api_keys IN SHARE ROW EXCLUSIVE MODE")
            done = await connection.execute(_DONE, *whose, erasure.asked_at, name, audited.at)
            if done == "UPDATE 0":
                return
            for row in await connection.fetch(_KEYS, *whose):
                await connection.execute(_NAMELESS_KEY, row["id"], name, audited.at)
            await chain_entries(connection, sealer, [sealer.entry(erasure.tenant, audited)])


def _with_replica(erasure: Erasure, replica: str) -> Erasure:
    names = tuple(dict.fromkeys((*erasure.released, replica)))
    return msgspec.structs.replace(erasure, released=names)


def _released_values(erasure: Erasure) -> Sequence[Any]:
    return erasure.tenant, erasure.user, erasure.asked_at, "\n".join(erasure.released)


class MemoryEndUsers:
    """Gone with the journal that it belongs to."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._store = journal.store

    async def heads(self, tenant: TenantId, user: str, *, after: SessionKey | None, limit: int) -> list[Head]:
        behind = after or FIRST_KEY
        stored = [key for key in self._store.keys() if key.tenant == tenant]  # noqa: SIM118 - no mapping
        heads = [self._store.head(key) for key in sorted(stored) if key.session > behind.session]
        return [head for head in heads if head is not None and head.user == user][:limit]

    async def request_erasure(self, erasure: Erasure, audited: Audited) -> Erasure:
        for found in self._store.erasures:
            if found.done_at is None and (found.tenant, found.user) == (erasure.tenant, erasure.user):
                return found
        self._store.erasures.append(erasure)
        self._store.chain([self._store.sealer.entry(erasure.tenant, audited)])
        return erasure

    async def find(self, tenant: TenantId, user: str) -> Erasure | None:
        names = _stored_names(self._store.sealer, tenant, user)
        mine = [each for each in self._store.erasures if each.tenant == tenant and each.user in names]
        return max(mine, key=lambda each: each.asked_at, default=None)

    async def pending(self, *, limit: int) -> list[Erasure]:
        return [each for each in self._store.erasures if each.done_at is None][:limit]

    async def released(self, erasure: Erasure, replica: str) -> Erasure:
        told = erasure
        for place, found in enumerate(self._store.erasures):
            if found.done_at is None and (found.tenant, found.user) == (erasure.tenant, erasure.user):
                told = self._store.erasures[place] = _with_replica(found, replica)
        return told

    async def finish(self, erasure: Erasure, audited: Audited) -> None:
        store, replace = self._store, msgspec.structs.replace
        name = store.sealer.pseudonym(erasure.tenant, erasure.user)
        for place, found in enumerate(store.erasures):
            same = (found.tenant, found.user, found.asked_at) == (erasure.tenant, erasure.user, erasure.asked_at)
            if found.done_at is not None or not same:
                continue
            store.erasures[place] = replace(found, user=name, done_at=audited.at)
            for key, row in list(store.usage_rows.items()):
                who = row.principal
                if key[0].tenant == erasure.tenant and who.user == erasure.user:
                    key_id = "" if who.key_id == who.user else who.key_id
                    store.usage_rows[key] = replace(row, principal=replace(who, user=None, key_id=key_id))
            version = max((each.version for each in store.api_keys.values()), default=0)
            for each in sorted(store.api_keys.values(), key=lambda each: each.id):
                if each.tenant == erasure.tenant and each.user == erasure.user:
                    version += 1
                    ended = audited.at if each.revoked_at is None else each.revoked_at
                    store.api_keys[each.id] = replace(each, user=name, name="", revoked_at=ended, version=version)
            store.chain([store.sealer.entry(erasure.tenant, audited)])


def end_users_of(journal: object) -> EndUserStore:
    """The end users of a journal's database; good for as long as the journal is open."""
    match journal:
        case SqliteJournal():
            return SqliteEndUsers(journal)
        case PostgresJournal():
            return PostgresEndUsers(journal)
        case MemoryJournal():
            return MemoryEndUsers(journal)
        case _:
            raise BadInput("unknown_journal", "This journal knows no end users.", param="journal")
