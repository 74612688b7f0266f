"""The journal in PostgreSQL: what is written and read. Connections and commits: see `database.py`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from persistence.codec import HEAD_ROW, HeadBody, KeyNotLoaded, encode_head_body, with_keys
from persistence.postgres import statements as sql
from persistence.postgres.connection import terminate
from persistence.postgres.database import PostgresDatabase
from persistence.postgres.error_mapping import FAILURES, NO_ANSWER, translate
from persistence.postgres.purge import purge_commands, purge_session
from persistence.sql.log_pages import read_rest
from persistence.validation import COMMANDS_KEPT_MS, FIRST_KEY, check_key, check_text, fenced, unknown_cursor
from persistence.write_batch import AppendWrite
from sessions.limits import Tally
from sessions.model.journal_types import (
    COMMANDS_LOADED_MAX,
    Append,
    CommandRecord,
    Due,
    Head,
    Loaded,
    Page,
    ResponsePlace,
    UsageRow,
)
from sessions.model.types import NEVER, CommandId, Epoch, ResponseId, SessionId, SessionKey, TenantId, UnixMs

LOAD_PAGE_ROWS: Final = 20_000
LOAD_PAGE_BYTES: Final = 16 * 2**20


class PostgresJournal:
    """The Journal port; see the port for the contract."""

    def __init__(self, database: PostgresDatabase) -> None:
        self.database = database
        self._codec = database.codec
        self._with_keys = partial(with_keys, database.codec)
        self._submit = database.submit
        self._fetch = database.fetch
        self._connection = database.connection
        self._resolve_unknown = database.resolve_unknown
        self._bytes_max = database.write_bytes_max

    @property
    def incarnation(self) -> str:
        return self.database.incarnation

    async def append(self, append: Append) -> None:
        sealer, bytes_max = self.database.sealer, self._bytes_max
        try:
            write = AppendWrite(self._codec, append, sealer=sealer, bytes_max=bytes_max)
        except KeyNotLoaded:
            write = await self._with_keys(lambda: AppendWrite(self._codec, append, sealer=sealer, bytes_max=bytes_max))
        await self._submit(write)

    async def grant(
        self, key: SessionKey, *, expected_fence: int | None, owner: str, new_epoch: Epoch, now_ms: UnixMs
    ) -> Head:
        check_key(key)
        check_text(owner, new_epoch)
        if expected_fence is None:
            empty = encode_head_body(HeadBody())
            key_id, about = await self._with_keys(lambda: self._codec.encode(key, HEAD_ROW, empty))
        async with self._connection() as connection:
            try:
                if expected_fence is None:
                    row = await connection.fetchrow(sql.GRANT_NEW, *key, new_epoch, owner, key_id, about, now_ms)
                else:
                    row = await connection.fetchrow(sql.GRANT_NEXT, *key, expected_fence, new_epoch, owner, now_ms)
            except FAILURES as exc:
                if isinstance(exc, NO_ANSWER):
                    terminate(connection)
                raise translate(exc) from exc
        if row is None:
            raise fenced()
        return await self._with_keys(lambda: sql.head_of(self._codec, row))

    async def head(self, key: SessionKey) -> Head | None:
        check_key(key)
        await self._resolve_unknown()
        rows = await self._fetch(sql.HEAD, *key)
        return await self._with_keys(lambda: sql.head_of(self._codec, rows[0])) if rows else None

    async def load(self, key: SessionKey, *, now_ms: UnixMs) -> Loaded | None:
        check_key(key)
        await self._resolve_unknown()
        since, most = now_ms - COMMANDS_KEPT_MS, COMMANDS_LOADED_MAX
        rows = await self._fetch(sql.LOAD, *key, since, most + 1, LOAD_PAGE_ROWS, LOAD_PAGE_BYTES)
        if not rows:
            return None
        head, snapshot, first, commands = await self._with_keys(lambda: sql.loaded_of(self._codec, key, rows[0]))
        after = snapshot.offset if snapshot else 0
        records = list(first)
        records += await read_rest(self, head, after + len(records), LOAD_PAGE_ROWS, LOAD_PAGE_BYTES)
        return Loaded(head, snapshot, tuple(records), tuple(commands[most - 1 :: -1]), len(commands) <= most)

    async def read(self, key: SessionKey, *, after: int, limit: int, bytes_max: int) -> Page | None:
        check_key(key)
        rows = await self._fetch(sql.READ, *key, after, limit, bytes_max)
        if not rows:
            return None
        return await self._with_keys(
            lambda: Page(sql.head_of(self._codec, rows[0]), sql.records_of(self._codec, key, rows[0], after=after))
        )

    async def find_command(self, key: SessionKey, principal_id: str, command_id: CommandId) -> CommandRecord | None:
        check_key(key)
        check_text(principal_id, command_id)
        await self._resolve_unknown()
        rows = await self._fetch(sql.FIND_COMMAND, *key, principal_id, command_id)
        return await self._with_keys(lambda: sql.command_of(self._codec, key, tuple(rows[0]))) if rows else None

    async def find_response(self, tenant: TenantId, response_id: ResponseId) -> ResponsePlace | None:
        check_text(tenant, response_id)
        await self._resolve_unknown()
        rows = await self._fetch(sql.FIND_RESPONSE, tenant, response_id)
        return ResponsePlace(SessionKey(tenant, SessionId(rows[0][0])), rows[0][1]) if rows else None

    async def list_heads(
        self, tenant: TenantId, *, user: str | None, limit: int, after: SessionKey | None
    ) -> list[Head]:
        check_text(tenant, user)
        place: tuple[int, str] | None = None
        if after is not None:
            check_key(after)
            rows = await self._fetch(sql.PLACE, *after)
            if not rows or after.tenant != tenant:
                raise unknown_cursor()
            place = (rows[0][0], rows[0][1])
        statement, values = sql.list_heads(tenant, user, limit, place)
        return await self._heads(await self._fetch(statement, *values))

    async def tally(self, tenant: TenantId, *, user: str | None, stored: bool) -> Tally:
        """See `sessions.limits.Tallies`."""
        check_text(tenant, user)
        return Tally(*(await self._fetch(sql.TALLY, tenant, user, stored))[0])

    async def open_heads(self, *, limit: int, after: SessionKey | None) -> list[Head]:
        return await self._heads(await self._fetch(sql.OPEN_HEADS, limit, *(after or FIRST_KEY)))

    async def _heads(self, rows: Sequence[Any]) -> list[Head]:
        return await self._with_keys(lambda: [sql.head_of(self._codec, row) for row in rows])

    async def read_usage(self, tenant: TenantId, *, since: UnixMs, limit: int) -> list[UsageRow]:
        check_text(tenant)
        return [sql.usage_of(row) for row in await self._fetch(sql.READ_USAGE, tenant, since, limit)]

    # -- purge ------------------------------------------------------------------------------------------------------

    async def purgeable(self, due: Due, *, limit: int) -> list[SessionKey]:
        statement = sql.purgeable(idle=due.idle_before > NEVER, of_one=due.tenant is not None)
        times = (due.deleted_before, limit, due.unlisted_before, due.idle_before)
        rows = await self._fetch(statement, *times, due.tenant, list(due.besides), due.user)
        return [SessionKey(TenantId(tenant), SessionId(session)) for tenant, session in rows]

    async def purge(
        self, keys: Sequence[SessionKey], due: Due, *, commands_before: UnixMs, at: UnixMs
    ) -> list[SessionKey]:
        purged = []
        for key in keys:
            async with self._connection() as connection:
                try:
                    if await purge_session(connection, key, due, self.database.sealer, at):
                        purged.append(key)
                except FAILURES as exc:
                    raise translate(exc) from exc
        async with self._connection() as connection:
            try:
                await purge_commands(connection, commands_before)
            except FAILURES as exc:
                raise translate(exc) from exc
        return purged
