"""The journal in one SQLite file: what is written and read. Connections and commits: see `database.py`.

A read is one statement, so it sees one state of the file, and every commit that was acknowledged before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from persistence.codec import KeyNotLoaded, with_keys
from persistence.sql.log_pages import read_rest
from persistence.sqlite import statements as sql
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.transaction import STORE_KEY, purge_commands_step, purge_step
from persistence.validation import COMMANDS_KEPT_MS, check_key, check_text, unknown_cursor
from persistence.write_batch import AppendWrite, GrantWrite, JobWrite
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

LOAD_PAGE_ROWS: Final = 100_000
LOAD_PAGE_BYTES: Final = 16 * 2**20


class SqliteJournal:
    """The Journal port; see the port for the contract."""

    def __init__(self, database: SqliteDatabase) -> None:
        self.database = database
        self._codec = database.codec
        self._with_keys = partial(with_keys, database.codec)
        self._submit = database.submit
        self._one = database.one
        self._resolve_unknown = database.resolve_unknown
        self._bytes_max = database.write_bytes_max

    @property
    def incarnation(self) -> str:
        return self.database.incarnation

    async def grant(
        self, key: SessionKey, *, expected_fence: int | None, owner: str, new_epoch: Epoch, now_ms: UnixMs
    ) -> Head:
        write = await self._with_keys(lambda: GrantWrite(self._codec, key, expected_fence, owner, new_epoch, now_ms))
        row = await self._submit(write)
        return await self._with_keys(lambda: sql.head_of_row(self._codec, row))

    async def append(self, append: Append) -> None:
        sealer, bytes_max = self.database.sealer, self._bytes_max
        try:
            write = AppendWrite(self._codec, append, sealer=sealer, bytes_max=bytes_max)
        except KeyNotLoaded:
            write = await self._with_keys(lambda: AppendWrite(self._codec, append, sealer=sealer, bytes_max=bytes_max))
        await self._submit(write)

    async def head(self, key: SessionKey) -> Head | None:
        check_key(key)
        await self._resolve_unknown()
        row = await self._one(sql.HEAD, key)
        return None if row is None else await self._with_keys(lambda: sql.head_of(self._codec, row[0]))

    async def load(self, key: SessionKey, *, now_ms: UnixMs) -> Loaded | None:
        check_key(key)
        await self._resolve_unknown()
        row = await self._one(
            sql.LOAD,
            (*key, now_ms - COMMANDS_KEPT_MS, COMMANDS_LOADED_MAX + 1, LOAD_PAGE_ROWS, LOAD_PAGE_BYTES),
        )
        if row is None:
            return None
        head, snapshot, first, commands = await self._with_keys(lambda: sql.loaded_of(self._codec, key, row))
        after = snapshot.offset if snapshot else 0
        records = list(first)
        records += await read_rest(self, head, after + len(records), LOAD_PAGE_ROWS, LOAD_PAGE_BYTES)
        complete = len(commands) <= COMMANDS_LOADED_MAX
        return Loaded(head, snapshot, tuple(records), tuple(commands[COMMANDS_LOADED_MAX - 1 :: -1]), complete)

    async def read(self, key: SessionKey, *, after: int, limit: int, bytes_max: int) -> Page | None:
        check_key(key)
        row = await self._one(sql.READ, (*key, after, limit, bytes_max))
        if row is None:
            return None
        return await self._with_keys(
            lambda: Page(sql.head_of(self._codec, row[0]), sql.records_of(self._codec, key, row[1], after=after))
        )

    async def find_command(self, key: SessionKey, principal_id: str, command_id: CommandId) -> CommandRecord | None:
        check_key(key)
        check_text(principal_id, command_id)
        await self._resolve_unknown()
        row = await self._one(sql.FIND_COMMAND, (*key, principal_id, command_id))
        return None if row is None else await self._with_keys(lambda: sql.command_of(self._codec, key, row[0]))

    async def find_response(self, tenant: TenantId, response_id: ResponseId) -> ResponsePlace | None:
        check_text(tenant, response_id)
        await self._resolve_unknown()
        row = await self._one(sql.FIND_RESPONSE, (tenant, response_id))
        return None if row is None else ResponsePlace(SessionKey(tenant, SessionId(row[0])), row[1])

    async def list_heads(
        self, tenant: TenantId, *, user: str | None, limit: int, after: SessionKey | None
    ) -> list[Head]:
        check_text(tenant, user)
        place: tuple[int, str] | None = None
        if after is not None:
            check_key(after)
            row = await self._one("SELECT updated_at, session FROM heads WHERE tenant = ?1 AND session = ?2", after)
            if row is None or after.tenant != tenant:
                raise unknown_cursor()
            place = row
        (text,) = await self._one(*sql.list_heads(tenant, user, limit, place))
        return await self._with_keys(lambda: sql.heads_of(self._codec, text))

    async def tally(self, tenant: TenantId, *, user: str | None, stored: bool) -> Tally:
        """See `sessions.limits.Tallies`."""
        check_text(tenant, user)
        sessions, stored_bytes = await self._one(sql.TALLY, (tenant, user, stored))
        return Tally(sessions, stored_bytes)

    async def open_heads(self, *, limit: int, after: SessionKey | None) -> list[Head]:
        (text,) = await self._one(sql.OPEN_HEADS, (limit, *(after or STORE_KEY)))
        return await self._with_keys(lambda: sql.heads_of(self._codec, text))

    async def read_usage(self, tenant: TenantId, *, since: UnixMs, limit: int) -> list[UsageRow]:
        check_text(tenant)
        (text,) = await self._one(sql.READ_USAGE, (tenant, since, limit))
        return sql.usage_of(tenant, text)

    # -- purge ------------------------------------------------------------------------------------------------------

    async def purgeable(self, due: Due, *, limit: int) -> list[SessionKey]:
        others = msgspec.json.encode(due.besides).decode()
        values = (due.deleted_before, limit, due.unlisted_before, due.idle_before, due.tenant, others, due.user)
        async with self.database.reader() as reader:
            rows = await reader.execute_fetchall(sql.purgeable(idle=due.idle_before > NEVER), values)
        return [SessionKey(TenantId(tenant), SessionId(session)) for tenant, session in rows]

    async def purge(
        self, keys: Sequence[SessionKey], due: Due, *, commands_before: UnixMs, at: UnixMs
    ) -> list[SessionKey]:
        """In transactions of a few thousand rows, so that appends come in between."""
        purged = []
        for key in keys:
            step = purge_step(key, due, self.database.sealer, at)
            while (done := await self._submit(JobWrite(key, step))) is None:
                pass
            if done:
                purged.append(key)
        while await self._submit(JobWrite(STORE_KEY, purge_commands_step(commands_before))):
            pass
        return purged
