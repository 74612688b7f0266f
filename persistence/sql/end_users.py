"""End users and their erasures in SQLite and PostgreSQL. Port: `sessions.governance.end_user_data.EndUserStore`."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Final

from persistence.codec import Codec, KeyDestroyed, memory_row, with_keys
from persistence.sql.files import FORGET_FILES
from persistence.sql.head_pages import read_heads
from persistence.sql.journal import JournalStatements
from persistence.sql.script import Lock, Query, Script, SqlDatabase, chained, one_query
from persistence.validation import FIRST_KEY, check_text, names_of_user, released_by
from sessions.governance.end_user_data import Erasure
from sessions.model.audit import Audited
from sessions.model.journal_types import Head
from sessions.model.memories import MEMORIES_MAX, MemoryId, UserMemory, too_many_memories
from sessions.model.types import MEMORIES, SessionKey, TenantId, UnixMs

_COLUMNS: Final = "tenant, end_user, asked_at, asked_by, released, done_at"
_PENDING: Final = f"SELECT {_COLUMNS} FROM erasures WHERE done_at IS NULL ORDER BY asked_at, tenant, end_user LIMIT $1"
_UNDER_WAY: Final = f"SELECT {_COLUMNS} FROM erasures WHERE tenant = $1 AND end_user = $2 AND done_at IS NULL"
_INSERT: Final = f"INSERT INTO erasures ({_COLUMNS}) VALUES ($1, $2, $3, $4, '', NULL)"
_RELEASED: Final = (
    "UPDATE erasures SET released = $4 WHERE tenant = $1 AND end_user = $2 AND asked_at = $3 AND done_at IS NULL"
)
_DONE: Final = (
    "UPDATE erasures SET end_user = $4, done_at = $5"
    " WHERE tenant = $1 AND end_user = $2 AND asked_at = $3 AND done_at IS NULL RETURNING end_user"
)
USAGE_ROWS: Final = 2_000  # of a tenant, from which one transaction removes a name
# A key that is a user of its own is named like one.
_NAMELESS_USAGE: Final = (
    "UPDATE usage SET principal_user = NULL,"
    " principal_key = CASE WHEN principal_key = principal_user THEN '' ELSE principal_key END"
    " WHERE tenant = $1 AND (at, seq) > ($3, $4) AND (at, seq) <= ($5, $6) AND principal_user = $2"
)
_USAGE_ROWS_BEHIND: Final = (
    "SELECT at, seq, principal_user = $2 FROM usage WHERE tenant = $1 AND (at, seq) > ($3, $4)"
    " ORDER BY at, seq LIMIT $5"
)
_KEYS: Final = "SELECT id FROM api_keys WHERE tenant = $1 AND end_user = $2 ORDER BY id"
_NAMELESS_KEY: Final = (
    "UPDATE api_keys SET version = (SELECT max(version) + 1 FROM api_keys), end_user = $2, name = '',"
    " revoked_at = coalesce(revoked_at, $3) WHERE id = $1"
)


_MEMORIES: Final = (
    "SELECT id, key_id, body, created_at, updated_at FROM memories WHERE tenant = $1 AND end_user = $2"
    " ORDER BY created_at, id"
)
_COUNT_MEMORIES: Final = "SELECT count(*) FROM memories WHERE tenant = $1 AND end_user = $2"
_ADD_MEMORY: Final = (
    "INSERT INTO memories (tenant, end_user, id, key_id, body, created_at, updated_at)"
    " VALUES ($1, $2, $3, $4, $5, $6, $7)"
)
_CHANGE_MEMORY: Final = (
    "UPDATE memories SET key_id = $4, body = $5, updated_at = $6 WHERE tenant = $1 AND end_user = $2 AND id = $3"
    " RETURNING created_at"
)
_REMOVE_MEMORY: Final = "DELETE FROM memories WHERE tenant = $1 AND end_user = $2 AND id = $3 RETURNING id"
_FORGET: Final = "DELETE FROM memories WHERE tenant = $1 AND end_user = $2 AND created_at <= $3"

# Devices likewise; what waits to be sent to them is about sessions that go.
_FORGET_DEVICES: Final = "DELETE FROM push_subscriptions WHERE tenant = $1 AND end_user = $2 AND created_at <= $3"
_FORGET_PUSHES: Final = "DELETE FROM push_outbox WHERE tenant = $1 AND end_user = $2"


def _find_statement(user_names: int) -> str:
    names = ", ".join(f"${2 + n}" for n in range(user_names))
    return f"SELECT {_COLUMNS} FROM erasures WHERE tenant = $1 AND end_user IN ({names}) ORDER BY asked_at DESC LIMIT 1"


class SqlEndUsers:
    def __init__(self, database: SqlDatabase, statements: JournalStatements) -> None:
        self._database = database
        self._sql = statements

    async def heads(self, tenant: TenantId, user: str, *, after: SessionKey | None, limit: int) -> list[Head]:
        check_text(tenant, user)
        session = (after or FIRST_KEY).session
        rows = await self._database.rows(self._sql.HEADS_OF_USER, (tenant, user, session, limit))
        return await read_heads(self._database.codec, lambda codec: self._sql.heads_of(codec, rows))

    async def request_erasure(self, erasure: Erasure, audited: Audited) -> Erasure:
        check_text(erasure.tenant, erasure.user)

        def script() -> Script[Erasure]:
            yield Lock("erasures")
            for row in (yield Query(_UNDER_WAY, (erasure.tenant, erasure.user))):
                return _erasure(row)
            yield Query(_INSERT, (erasure.tenant, erasure.user, erasure.asked_at, erasure.asked_by))
            yield from _forgotten(erasure)
            yield from chained(self._database, erasure.tenant, audited)
            return erasure

        return await self._database.run(script)

    async def find(self, tenant: TenantId, user: str) -> Erasure | None:
        check_text(tenant, user)
        names = names_of_user(self._database.sealer, tenant, user)
        for row in await self._database.rows(_find_statement(len(names)), (tenant, *names)):
            return _erasure(row)
        return None

    async def pending(self, *, limit: int) -> list[Erasure]:
        return [_erasure(row) for row in await self._database.rows(_PENDING, (limit,))]

    async def released(self, erasure: Erasure, replica: str) -> Erasure:
        def script() -> Script[Erasure]:
            yield Lock("erasures")
            for row in (yield Query(_UNDER_WAY, (erasure.tenant, erasure.user))):
                stored = released_by(_erasure(row), replica)
                names = "\n".join(stored.released)
                yield Query(_RELEASED, (stored.tenant, stored.user, stored.asked_at, names))
                return stored
            return erasure

        return await self._database.run(script)

    async def memories(self, tenant: TenantId, user: str) -> list[UserMemory]:
        check_text(tenant, user)
        rows, codec = await self._database.rows(_MEMORIES, (tenant, user)), self._database.codec
        memories = []
        for row in rows:
            with suppress(KeyDestroyed):  # lost on purpose: the user begins anew
                memories.append(await with_keys(codec, partial(_memory, codec, tenant, user, row)))
        return memories

    async def add_memory(self, memory: UserMemory) -> None:
        whose = (memory.tenant, memory.user)
        sealed = await self._sealed(*whose, memory.id, memory.text)

        def script() -> Script[None]:
            yield Lock("memories")
            ((count,),) = yield Query(_COUNT_MEMORIES, whose)
            if count >= MEMORIES_MAX:
                raise too_many_memories()
            yield Query(_ADD_MEMORY, (*whose, memory.id, *sealed, memory.created_at, memory.updated_at))

        await self._database.run(script)

    async def change_memory(
        self, tenant: TenantId, user: str, memory_id: MemoryId, *, text: str, at: UnixMs
    ) -> UserMemory | None:
        sealed = await self._sealed(tenant, user, memory_id, text)
        values = (tenant, user, memory_id, *sealed, at)
        for (created_at,) in await self._database.run(lambda: one_query(_CHANGE_MEMORY, values)):
            about = {"created_at": created_at, "updated_at": at}
            return UserMemory(id=memory_id, tenant=tenant, user=user, text=text, **about)
        return None

    async def remove_memory(self, tenant: TenantId, user: str, memory_id: MemoryId) -> bool:
        check_text(tenant, user, memory_id)
        removed = await self._database.run(lambda: one_query(_REMOVE_MEMORY, (tenant, user, memory_id)))
        return bool(removed)

    async def _sealed(self, tenant: TenantId, user: str, memory_id: MemoryId, text: str) -> tuple[str, bytes]:
        check_text(tenant, user, memory_id, text)
        key, row, codec = SessionKey(tenant, MEMORIES), memory_row(user, memory_id), self._database.codec
        return await with_keys(codec, lambda: codec.encode(key, row, text.encode()))

    async def finish(self, erasure: Erasure, audited: Audited) -> None:
        """Ends an erasure. Usage rows are changed first, a limited number in each transaction, because on SQLite every
        other writer waits for the transaction."""
        whose = (erasure.tenant, erasure.user)
        behind: tuple[Any, ...] = (-1, -1)
        while rows := await self._database.rows(_USAGE_ROWS_BEHIND, (*whose, *behind, USAGE_ROWS)):
            values = (*whose, *behind, *rows[-1][:2])
            if any(is_theirs for *_, is_theirs in rows):
                await self._database.run(partial(one_query, _NAMELESS_USAGE, values))
            behind = values[-2:]
        name = self._database.sealer.pseudonym(*whose)

        def script() -> Script[None]:
            yield Lock("api_keys")
            if not (yield Query(_DONE, (*whose, erasure.asked_at, name, audited.at))):
                return
            yield from _forgotten(erasure)
            for (key_id,) in (yield Query(_KEYS, whose)):
                yield Query(_NAMELESS_KEY, (key_id, name, audited.at))
            yield from chained(self._database, erasure.tenant, audited)

        await self._database.run(script)


def _forgotten(erasure: Erasure) -> Script[None]:
    """Deletes a user's memories, devices and files of the time before the erasure was requested."""
    whose = (erasure.tenant, erasure.user)
    for text in (_FORGET, _FORGET_DEVICES, *FORGET_FILES):
        yield Query(text, (*whose, erasure.asked_at))
    yield Query(_FORGET_PUSHES, whose)


def _memory(codec: Codec, tenant: TenantId, user: str, row: Any) -> UserMemory:
    memory_id, key_id, body, created_at, updated_at = tuple(row)
    plain = codec.decode(SessionKey(tenant, MEMORIES), memory_row(user, memory_id), key_id, bytes(body))
    about = {"created_at": created_at, "updated_at": updated_at}
    return UserMemory(id=memory_id, tenant=tenant, user=user, text=plain.decode(), **about)


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
