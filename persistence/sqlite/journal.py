"""The journal in one SQLite file: group commit on one writer connection, a few readers beside it.

* One connection writes, in `BEGIN IMMEDIATE` transactions with `synchronous=FULL`. Checkpoints are made beside it (see
  `sqlite_checkpoints.py`) or, where SQLite is too old for that, in its commits. Readers are `query_only`; the writer
  opens first and closes last, and the folder is locked against other processes.
* A transaction is one trip to the writer's thread, however many sessions are in it (see `sqlite_transaction.py`).
* A read is one statement, so it sees one state of the file, and every commit that was acknowledged before it.
* After a failed commit nothing is acknowledged. If it cannot be known whether it reached the disk, `head`, `load` and
  `find_command` answer only when a later commit has gone through, which overwrites what may have been left there.

Source of the incarnation: see `folder.py`. Errors: see `sqlite_faults.py`. Tables: see `sqlite_schema.py`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import aiosqlite
import msgspec
import structlog

from persistence.codec import Codec, PlainCodec
from persistence.data_dir import FolderLock, Marker, unusable_data_dir
from persistence.group_commit import GroupCommit, GroupLimits, Write
from persistence.sqlite import statements as sql
from persistence.sqlite.audit_rows import secret_of
from persistence.sqlite.checkpoints import LAST_RESORT, Checkpointer, checkpoint, connector
from persistence.sqlite.faults import FAILURES, ONE_WRITE_IS_BAD, is_damage, translate
from persistence.sqlite.library import CHECKPOINTS_BESIDE_COMMITS, sqlite3
from persistence.sqlite.schema import SQLITE_VERSION_MIN, check_integrity, damaged, migrate
from persistence.sqlite.transaction import (
    STORE_KEY,
    Transaction,
    WriterCall,
    WriterConnection,
    begin_incarnation,
    no_op,
    purge_commands_step,
    purge_step,
)
from persistence.validation import (
    COMMANDS_KEPT_MS,
    check_key,
    check_text,
    closed,
    unknown_cursor,
)
from persistence.write_batch import AppendWrite, GrantWrite, JobWrite
from sessions.limits import Tally
from sessions.model.audit import Sealer
from sessions.model.errors import Internal, OutcomeUnknown, Unavailable
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

log = structlog.get_logger(__name__)

LOAD_PAGE_ROWS: Final = 100_000
LOAD_PAGE_BYTES: Final = 16 * 2**20
MARKER_SYNC_S: Final = 1.0


class SqliteJournal:
    """The Journal port on `folder/journal.db`. One per folder; see the port for the contract."""

    def __init__(
        self,
        folder: Path,
        *,
        codec: Codec | None = None,
        limits: GroupLimits | None = None,
        marker: Path | None = None,
        audit_key: bytes | None = None,
        num_readers: int = 2,
        checkpoint_pages: int = 2000,
        checkpoints_beside: bool = CHECKPOINTS_BESIDE_COMMITS,
        quick_check_bytes_max: int = 128 * 2**20,
        new_id: Callable[[], str] = lambda: uuid4().hex,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`marker`: where the incarnation's side file lies, when a backup of the folder should not contain it.
        `audit_key`: see `sessions.model.audit`."""
        self.path = folder / "journal.db"
        self._folder = folder
        self.codec = self._codec = codec or PlainCodec()
        self._lock = FolderLock(folder)
        self._marker = Marker(marker or folder / "journal.marker", now=now)
        self._num_readers = num_readers
        self._checkpoint_pages = checkpoint_pages
        self._checkpoints_beside = checkpoints_beside
        self._checkpoints: Checkpointer | None = None
        self._quick_check_bytes_max = quick_check_bytes_max
        self._new_id = new_id
        self._now = now
        self._group = GroupCommit(self._commit, limits)
        self._bytes_max = self._group.limits.write_bytes_max
        self._writer: aiosqlite.Connection | None = None
        self._readers: list[aiosqlite.Connection] = []
        self._idle: asyncio.Queue[aiosqlite.Connection] = asyncio.Queue()
        self._incarnation = ""
        self._generation = 0
        self._commits = 0
        self._unsure = False  # a commit failed such that it may be on the disk; cleared by the next good one
        self._dead: Unavailable | None = None  # why nothing can be written any more
        self._closed = False
        self._audit_key = audit_key
        self.sealer = Sealer(b"")  # of the audit log, from `open` on

    @property
    def incarnation(self) -> str:
        return self._incarnation

    # -- life -------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
            raise Unavailable(
                "journal_sqlite_old",
                f"SQLite {sqlite3.sqlite_version} is too old: {'.'.join(map(str, SQLITE_VERSION_MIN))} is needed.",
                retryable=False,
            )
        self._lock.take()
        try:
            try:
                await self._open_writer()
                await self._settle_incarnation()
                for _ in range(self._num_readers):
                    reader = await self._connect(sqlite3.Connection)
                    self._readers.append(reader)
                    await reader.execute_fetchall("PRAGMA query_only = ON")
                    self._idle.put_nowait(reader)
                if self._checkpoints_beside:
                    self._checkpoints = Checkpointer(
                        await aiosqlite.Connection(connector(self._connector(sqlite3.Connection)), 1),
                        pages=self._checkpoint_pages,
                        rest=partial(self._run_on_writer, checkpoint),
                    )
            except sqlite3.Error as exc:
                raise self._cannot_open(exc) from exc
            except OSError as exc:
                raise unusable_data_dir(self._folder, exc) from exc
            self._group.start()
        except BaseException:
            await self._close_files()
            raise
        log.info("journal.opened", incarnation=self._incarnation, generation=self._generation)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._group.stop()
            await self._close_files()

    async def _close_files(self) -> None:
        """Readers first: whoever closes last makes a checkpoint, and that is the writer's business."""
        try:
            for connection in [*self._readers, self._checkpoints, self._writer]:
                try:
                    if connection is not None:
                        await connection.close()
                except sqlite3.Error:
                    log.exception("journal.close_failed")
            self._readers.clear()
            self._checkpoints = self._writer = None
            try:
                self._marker.close()
            except OSError:
                log.exception("journal.marker_failed")
        finally:
            self._lock.release()

    def _connector(self, factory: type[sqlite3.Connection]) -> Callable[[], sqlite3.Connection]:
        """By hand, because `aiosqlite.connect` takes the system's SQLite."""
        return partial(
            sqlite3.connect, self.path, isolation_level=None, cached_statements=256, timeout=2.0, factory=factory
        )

    async def _connect(self, factory: type[sqlite3.Connection]) -> aiosqlite.Connection:
        return await aiosqlite.Connection(self._connector(factory), iter_chunk_size=64)

    async def _open_writer(self) -> None:
        try:  # by hand first: a connection that cannot be made leaves its thread behind
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as exc:
            raise self._cannot_open(exc) from exc
        self._writer = writer = await self._connect(WriterConnection)
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            f"wal_autocheckpoint = {self._checkpoint_pages * (LAST_RESORT if self._checkpoints_beside else 1)}",
            "journal_size_limit = 67108864",
            "temp_store = MEMORY",
            "cache_size = -32768",
        ):
            await writer.execute_fetchall(f"PRAGMA {pragma}")
        await check_integrity(writer, self.path, whole_bytes_max=self._quick_check_bytes_max)
        await migrate(writer, self.path)
        self.sealer = Sealer(await secret_of(writer), self._audit_key)

    async def _settle_incarnation(self) -> None:
        """Compares the store with its marker and begins the next generation; a store that went back is made new."""
        writer = self._writer
        assert writer is not None
        mark = self._marker.open()
        found = list(
            await writer.execute_fetchall(
                "SELECT incarnation, fence, top FROM heads WHERE tenant = '' AND session = ''"
            )
        )
        incarnation, generation, commits = found[0] if found else ("", 0, 0)
        goes_on = mark is not None and mark.incarnation == incarnation and mark.position <= commits
        if not goes_on:
            if found:
                log.warning("journal.new_incarnation", last=incarnation, commits=commits, marker=str(mark))
            incarnation = self._new_id()
            commits = max(commits, mark.position if mark else 0)
        await self._run_on_writer(partial(begin_incarnation, incarnation, generation + 1, commits + 1, goes_on))
        self._incarnation, self._generation, self._commits = incarnation, generation + 1, commits + 1
        self._marker.write(incarnation, self._commits)
        await asyncio.to_thread(self._marker.sync)

    def _cannot_open(self, exc: Exception) -> Unavailable:
        if is_damage(exc):
            return damaged(self.path)
        return Unavailable(
            "journal_unusable",
            f"The journal {self.path} cannot be opened ({exc}). See that the disk has space and that this user may "
            f"write to the folder and to every journal.db* in it.",
            retryable=False,
        )

    # -- writes -----------------------------------------------------------------------------------------------------

    async def grant(
        self, key: SessionKey, *, expected_fence: int | None, owner: str, new_epoch: Epoch, now_ms: UnixMs
    ) -> Head:
        head: Head = await self._group.submit(GrantWrite(self._codec, key, expected_fence, owner, new_epoch, now_ms))
        return head

    async def append(self, append: Append) -> None:
        await self._group.submit(AppendWrite(self._codec, append, sealer=self.sealer, bytes_max=self._bytes_max))

    async def _commit(self, writes: Sequence[Write]) -> Sequence[object]:
        """One transaction for a batch; every write gets its result or its error."""
        if self._dead is not None:
            return [self._dead] * len(writes)
        transaction = Transaction(
            self._codec,
            writes,
            sealer=self.sealer,
            incarnation=self._incarnation,
            generation=self._generation,
            commits=self._commits,
            mark=self._mark,
        )
        try:
            outcomes = await self._run_on_writer(transaction.run)
        except ONE_WRITE_IS_BAD as exc:
            if len(writes) > 1:
                return [outcome for write in writes for outcome in await self._commit([write])]
            log.exception("journal.write_refused", tenant=writes[0].key.tenant, session=writes[0].key.session)
            error = Internal("journal_refused", "This change cannot be stored.")
            error.__cause__ = exc
            return [error]
        except FAILURES as exc:
            failure = translate(exc)
            log.error("journal.commit_failed", code=failure.code, cause=repr(failure.__cause__), writes=len(writes))
            if isinstance(failure, OutcomeUnknown):
                self._unsure = True
            elif not failure.retryable:
                self._dead = failure
            return [failure] * len(writes)
        finally:
            self._commits += transaction.committed
        self._unsure = False
        if self._checkpoints is not None:
            self._checkpoints.committed()
        return outcomes

    async def _run_on_writer(self, function: Callable[[sqlite3.Connection], list[Any]]) -> list[Any]:
        """Runs a function on the writer's thread."""
        assert self._writer is not None
        return list(await self._writer.execute_fetchall("", WriterCall(function)))

    def _mark(self, commits: int) -> None:
        """On the writer's thread, between a commit and its acknowledgement."""
        self._marker.write(self._incarnation, commits)
        if self._now() - self._marker.synced_at > MARKER_SYNC_S:
            self._marker.sync()

    # -- reads ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[aiosqlite.Connection]:
        """A reader of the pool. One whose caller was cancelled may be given out again at once: a connection
        works off what it was asked in order."""
        if self._closed or not self._readers:
            raise closed()
        reader = await self._idle.get()
        try:
            yield reader
        except sqlite3.Error as exc:
            raise translate(exc) from exc
        except ValueError as exc:
            if self._closed:
                raise closed() from exc
            raise
        finally:
            self._idle.put_nowait(reader)

    async def _one(self, statement: str, parameters: Sequence[Any]) -> Any:
        """The first row of a statement, or None."""
        async with self._reader() as reader:
            for row in await reader.execute_fetchall(statement, parameters):
                return row
        return None

    async def job(self, step: Callable[[sqlite3.Connection], object]) -> object:
        """Runs `step` in a transaction of the writer, for tables that are no session's (`persistence.api_keys`)."""
        return await self._group.submit(JobWrite(STORE_KEY, step))

    async def rows(self, statement: str, parameters: Sequence[Any]) -> list[Any]:
        """The rows of a read of such tables."""
        await self._resolve_unknown()
        async with self._reader() as reader:
            return list(await reader.execute_fetchall(statement, parameters))

    async def _resolve_unknown(self) -> None:
        """After a commit that may or may not be on the disk: passes only when a later one has settled it."""
        if self._unsure:
            await self._group.submit(JobWrite(STORE_KEY, no_op))

    async def head(self, key: SessionKey) -> Head | None:
        check_key(key)
        await self._resolve_unknown()
        row = await self._one(sql.HEAD, key)
        return None if row is None else sql.head_of(self._codec, row[0])

    async def load(self, key: SessionKey, *, now_ms: UnixMs) -> Loaded | None:
        check_key(key)
        await self._resolve_unknown()
        row = await self._one(
            sql.LOAD,
            (*key, now_ms - COMMANDS_KEPT_MS, COMMANDS_LOADED_MAX + 1, LOAD_PAGE_ROWS, LOAD_PAGE_BYTES),
        )
        if row is None:
            return None
        head = sql.head_of(self._codec, row[0])
        snapshot = sql.snapshot_of(self._codec, key, row[1])
        after = snapshot.offset if snapshot else 0
        records = list(sql.records_of(self._codec, key, row[2], after=after))
        # A log longer than one page: what stands up to this head's top stays, so later reads may fetch it.
        while after + len(records) < head.top:
            page = await self.read(key, after=after + len(records), limit=LOAD_PAGE_ROWS, bytes_max=LOAD_PAGE_BYTES)
            if page is None or not page.records:
                raise Internal("journal_hole", "The stored log of this session ends before its head.")
            records += page.records[: head.top - after - len(records)]
        commands = sql.commands_of(row[3])
        complete = len(commands) <= COMMANDS_LOADED_MAX
        return Loaded(head, snapshot, tuple(records), tuple(commands[COMMANDS_LOADED_MAX - 1 :: -1]), complete)

    async def read(self, key: SessionKey, *, after: int, limit: int, bytes_max: int) -> Page | None:
        check_key(key)
        row = await self._one(sql.READ, (*key, after, limit, bytes_max))
        if row is None:
            return None
        head = sql.head_of(self._codec, row[0])
        return Page(head, sql.records_of(self._codec, key, row[1], after=after))

    async def find_command(self, key: SessionKey, principal_id: str, command_id: CommandId) -> CommandRecord | None:
        check_key(key)
        check_text(principal_id, command_id)
        await self._resolve_unknown()
        row = await self._one(sql.FIND_COMMAND, (*key, principal_id, command_id))
        return None if row is None else sql.command_of(row[0])

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
        return sql.heads_of(self._codec, text)

    async def tally(self, tenant: TenantId, *, user: str | None, stored: bool) -> Tally:
        """See `sessions.limits.Tallies`."""
        check_text(tenant, user)
        sessions, stored_bytes = await self._one(sql.TALLY, (tenant, user, stored))
        return Tally(sessions, stored_bytes)

    async def open_heads(self, *, limit: int, after: SessionKey | None) -> list[Head]:
        (text,) = await self._one(sql.OPEN_HEADS, (limit, *(after or STORE_KEY)))
        return sql.heads_of(self._codec, text)

    async def read_usage(self, tenant: TenantId, *, since: UnixMs, limit: int) -> list[UsageRow]:
        check_text(tenant)
        (text,) = await self._one(sql.READ_USAGE, (tenant, since, limit))
        return sql.usage_of(tenant, text)

    # -- purge ------------------------------------------------------------------------------------------------------

    async def purgeable(self, due: Due, *, limit: int) -> list[SessionKey]:
        others = msgspec.json.encode(due.besides).decode()
        values = (due.deleted_before, limit, due.unlisted_before, due.idle_before, due.tenant, others, due.user)
        async with self._reader() as reader:
            rows = await reader.execute_fetchall(sql.purgeable(idle=due.idle_before > NEVER), values)
        return [SessionKey(TenantId(tenant), SessionId(session)) for tenant, session in rows]

    async def purge(
        self, keys: Sequence[SessionKey], due: Due, *, commands_before: UnixMs, at: UnixMs
    ) -> list[SessionKey]:
        """In transactions of a few thousand rows, so that appends get their turn in between."""
        purged = []
        for key in keys:
            step = purge_step(key, due, self.sealer, at)
            while (done := await self._group.submit(JobWrite(key, step))) is None:
                pass
            if done:
                purged.append(key)
        while await self._group.submit(JobWrite(STORE_KEY, purge_commands_step(commands_before))):
            pass
        return purged
