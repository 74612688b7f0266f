"""The journal in SQLite and PostgreSQL: its calls, in a driver's statements. Grants and purges are the drivers' own.

A read is one statement, so it sees one state of the store, and every commit that was acknowledged before it. Each
driver's `statements` is a `JournalStatements`: the SQL, and how a row of its answers becomes a struct.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from persistence.codec import (
    HEAD_ROW,
    Codec,
    KeyNotLoaded,
    command_row,
    decode_command,
    decode_head_body,
    decode_ok,
    with_keys,
)
from persistence.group_commit import Write
from persistence.sql.head_pages import read_heads
from persistence.sql.script import SqlDatabase
from persistence.validation import COMMANDS_KEPT_MS, FIRST_KEY, check_key, check_text, unknown_cursor
from persistence.write_batch import AppendWrite
from sessions.limits import Tally
from sessions.model.errors import Internal
from sessions.model.events import Record
from sessions.model.journal_types import (
    COMMANDS_LOADED_MAX,
    Append,
    CommandRecord,
    Due,
    Head,
    Loaded,
    Page,
    ResponsePlace,
    Snapshot,
)
from sessions.model.types import CommandId, Epoch, ResponseId, SessionId, SessionKey, TenantId, UnixMs

LOAD_PAGE_BYTES: Final = 16 * 2**20


class JournalStatements(Protocol):
    """The statements of a driver, as a module. A comment beside each names its parameters."""

    LOAD_PAGE_ROWS: int
    HEAD: str
    LOAD: str
    READ: str
    FIND_COMMAND: str
    FIND_RESPONSE: str
    PLACE: str
    TALLY: str
    OPEN_HEADS: str
    HEADS_OF_USER: str

    def list_heads(
        self, tenant: TenantId, user: str | None, limit: int, behind: tuple[int, str] | None
    ) -> tuple[str, Sequence[Any]]: ...
    def purgeable(self, due: Due, limit: int) -> tuple[str, Sequence[Any]]: ...
    def head_of(self, codec: Codec, row: Any) -> Head: ...
    def heads_of(self, codec: Codec, rows: Sequence[Any]) -> list[Head]: ...
    def records_of(self, codec: Codec, key: SessionKey, row: Any, *, after: int) -> tuple[Record, ...]: ...
    def snapshot_of(self, codec: Codec, key: SessionKey, row: Any) -> Snapshot | None: ...
    def commands_of(self, codec: Codec, key: SessionKey, row: Any) -> list[CommandRecord]: ...
    def command_of(self, codec: Codec, key: SessionKey, row: Any) -> CommandRecord: ...


class JournalDatabase(SqlDatabase, Protocol):
    """A database with the operations that the journal needs beyond those of `SqlDatabase`."""

    write_bytes_max: int

    @property
    def incarnation(self) -> str: ...

    def submit(self, write: Write) -> Awaitable[Any]: ...

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Returns the rows of a read. A commit whose outcome is unknown may or may not be seen."""
        ...

    async def resolve_unknown(self) -> None: ...


class SqlJournal:
    """The Journal port except `grant` and `purge`; the port describes the contract."""

    def __init__(self, database: JournalDatabase, statements: JournalStatements) -> None:
        self._database = database
        self._codec = database.codec
        self._with_keys = partial(with_keys, database.codec)
        self._sql = statements
        self._submit = database.submit
        self._fetch = database.fetch
        self._resolve_unknown = database.resolve_unknown

    @property
    def incarnation(self) -> str:
        return self._database.incarnation

    async def append(self, append: Append) -> None:
        try:
            write = self._append_write(append)
        except KeyNotLoaded:
            write = await self._with_keys(lambda: self._append_write(append))
        await self._submit(write)

    def _append_write(self, append: Append) -> AppendWrite:
        database = self._database
        return AppendWrite(self._codec, append, sealer=database.sealer, bytes_max=database.write_bytes_max)

    async def head(self, key: SessionKey) -> Head | None:
        check_key(key)
        await self._resolve_unknown()
        rows = await self._fetch(self._sql.HEAD, *key)
        return await self._head_of(rows[0]) if rows else None

    async def _head_of(self, row: Any) -> Head:
        """Returns the head of a row; without a title if its body cannot be read."""
        (head,) = await read_heads(self._codec, lambda codec: [self._sql.head_of(codec, row)])
        return head

    async def load(self, key: SessionKey, *, now_ms: UnixMs) -> Loaded | None:
        check_key(key)
        await self._resolve_unknown()
        sql, since, most = self._sql, now_ms - COMMANDS_KEPT_MS, COMMANDS_LOADED_MAX
        rows = await self._fetch(sql.LOAD, *key, since, most + 1, sql.LOAD_PAGE_ROWS, LOAD_PAGE_BYTES)
        if not rows:
            return None
        codec, row = self._codec, rows[0]
        snapshot = await self._with_keys(lambda: sql.snapshot_of(codec, key, row))
        after = snapshot.offset if snapshot else 0
        head, first, commands = await self._with_keys(
            lambda: (
                sql.head_of(codec, row),
                sql.records_of(codec, key, row, after=after),
                sql.commands_of(codec, key, row),
            )
        )
        records = [*first, *await self._read_rest(head, after + len(first))]
        return Loaded(head, snapshot, tuple(records), tuple(commands[most - 1 :: -1]), len(commands) <= most)

    async def _read_rest(self, head: Head, after: int) -> list[Record]:
        """Returns the records behind offset `after` up to the head's top. They never change, so they may come from
        several reads. Raises Internal if the log ends before the top."""
        records: list[Record] = []
        while after + len(records) < head.top:
            start, page_rows = after + len(records), self._sql.LOAD_PAGE_ROWS
            page = await self.read(head.key, after=start, limit=page_rows, bytes_max=LOAD_PAGE_BYTES)
            if page is None or not page.records:
                raise Internal("journal_hole", "The stored log of this session ends before its head.")
            records += page.records[: head.top - start]
        return records

    async def read(self, key: SessionKey, *, after: int, limit: int, bytes_max: int) -> Page | None:
        check_key(key)
        rows = await self._fetch(self._sql.READ, *key, after, limit, bytes_max)
        if not rows:
            return None
        sql, codec, row = self._sql, self._codec, rows[0]
        return await self._with_keys(
            lambda: Page(sql.head_of(codec, row), sql.records_of(codec, key, row, after=after))
        )

    async def find_command(self, key: SessionKey, principal_id: str, command_id: CommandId) -> CommandRecord | None:
        check_key(key)
        check_text(principal_id, command_id)
        await self._resolve_unknown()
        rows = await self._fetch(self._sql.FIND_COMMAND, *key, principal_id, command_id)
        return await self._with_keys(lambda: self._sql.command_of(self._codec, key, rows[0])) if rows else None

    async def find_response(self, tenant: TenantId, response_id: ResponseId) -> ResponsePlace | None:
        check_text(tenant, response_id)
        await self._resolve_unknown()
        rows = await self._fetch(self._sql.FIND_RESPONSE, tenant, response_id)
        return ResponsePlace(SessionKey(tenant, SessionId(rows[0][0])), rows[0][1]) if rows else None

    async def list_heads(
        self, tenant: TenantId, *, user: str | None, limit: int, after: SessionKey | None
    ) -> list[Head]:
        check_text(tenant, user)
        place: tuple[int, str] | None = None
        if after is not None:
            check_key(after)
            rows = await self._fetch(self._sql.PLACE, *after)
            if not rows or after.tenant != tenant or user not in (None, rows[0][2]):
                raise unknown_cursor()
            place = (rows[0][0], rows[0][1])
        statement, values = self._sql.list_heads(tenant, user, limit, place)
        rows = await self._fetch(statement, *values)
        return await read_heads(self._codec, lambda codec: self._sql.heads_of(codec, rows))

    async def tally(self, tenant: TenantId, *, user: str | None, stored: bool) -> Tally:
        """Counts sessions and bytes as `sessions.limits.Tallies` says."""
        check_text(tenant, user)
        return Tally(*(await self._fetch(self._sql.TALLY, tenant, user, stored))[0])

    async def open_heads(self, *, limit: int, after: SessionKey | None) -> list[Head]:
        rows = await self._fetch(self._sql.OPEN_HEADS, limit, *(after or FIRST_KEY))
        return await read_heads(self._codec, lambda codec: self._sql.heads_of(codec, rows))

    async def purgeable(self, due: Due, *, limit: int) -> list[SessionKey]:
        statement, values = self._sql.purgeable(due, limit)
        rows = await self._fetch(statement, *values)
        return [SessionKey(TenantId(tenant), SessionId(session)) for tenant, session in rows]


# -- rows to structs, for the drivers' statements ---------------------------------------------------------------------

HEAD_COLUMNS: Final = 16


def head_from(codec: Codec, columns: Sequence[Any], about: bytes) -> Head:
    """Makes a head from its columns, which are in the order of both drivers' `_HEAD`. `about` is the last column, the
    stored body, which is decoded here."""
    tenant, session, epoch, fence, incarnation, top, is_open, owner, user, model, listed, *times, key_id, _ = columns
    key = SessionKey(TenantId(tenant), SessionId(session))
    body = decode_head_body(codec.decode(key, HEAD_ROW, key_id, about))
    created_at, updated_at, deleted_at = times
    return Head(
        key=key,
        epoch=Epoch(epoch),
        fence=fence,
        incarnation=incarnation,
        top=top,
        open=bool(is_open),
        owner=owner,
        user=user,
        model=model,
        title=body.title,
        metadata=body.metadata,
        listed=bool(listed),
        created_at=created_at,
        updated_at=updated_at,
        deleted_at=deleted_at,
    )


def command_from(codec: Codec, key: SessionKey, columns: Sequence[Any]) -> CommandRecord:
    principal, command, digest, answer, at = columns
    digest, answer = decode_command(codec, key, command_row(principal, command), digest, answer)
    return CommandRecord(
        principal_id=principal, command_id=CommandId(command), digest=digest, answer=decode_ok(answer), at=UnixMs(at)
    )
