"""The SQLite file of a store: its connections, its group commit, and whether it may be used.

* One connection writes, in `BEGIN IMMEDIATE` transactions with `synchronous=FULL`. Checkpoints are made beside it (see
  `checkpoints.py`) or, where SQLite is too old for that, in its commits. Readers are `query_only`; the writer opens
  first and closes last, and the folder is locked against other processes.
* A transaction is one trip to the writer's thread, however many sessions are in it (see `transaction.py`).
* After a failed commit nothing is acknowledged. If it cannot be known whether it reached the disk, `resolve_unknown`
  returns only when a later commit has succeeded, which overwrites what may have been left there.

The incarnation is explained in `data_dir.py`, errors in `error_mapping.py`, tables in `schema.py`.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from uuid import uuid4

import aiosqlite
import msgspec
import structlog

from persistence.codec import Codec, PlainCodec
from persistence.data_dir import Marker
from persistence.folder_lock import FolderLock, unusable_data_dir
from persistence.group_commit import GroupCommit, GroupLimits, Write
from persistence.sql.script import Chain, Query, Script
from persistence.sqlite.audit_rows import chain, secret_of
from persistence.sqlite.checkpoints import LAST_RESORT, Checkpointer, checkpoint, connector
from persistence.sqlite.error_mapping import FAILURES, ONE_WRITE_IS_BAD, is_damage, translate
from persistence.sqlite.library import CHECKPOINTS_BESIDE_COMMITS, sqlite3
from persistence.sqlite.schema import (
    SQLITE_VERSION_MIN,
    check_integrity,
    damaged,
    migrate,
    refuse_leftovers,
    wipe_leftovers,
)
from persistence.sqlite.transaction import (
    STORE_KEY,
    Transaction,
    WriterCall,
    WriterConnection,
    begin_incarnation,
    no_op,
)
from persistence.validation import closed
from persistence.write_batch import JobWrite
from sessions.model.audit import Sealer
from sessions.model.errors import Internal, OutcomeUnknown, SessileError, Unavailable

log = structlog.get_logger(__name__)

MARKER_SYNC_S: Final = 1.0

T = TypeVar("T")


class SqliteTuning(msgspec.Struct, frozen=True, kw_only=True):
    num_readers: int = 2
    checkpoint_pages: int = 2000
    checkpoints_beside: bool = CHECKPOINTS_BESIDE_COMMITS
    checkpoints_elsewhere: bool = False
    """Whether another process makes all checkpoints (`replication.py`): none is made here while a connection is
    open."""
    quick_check_bytes_max: int = 128 * 2**20


class SqliteDatabase:
    """The SQLite file `folder/journal.db`, one per folder; usable from `open` to `close`.

    The journal and the views write through `submit` and `run`, and read through `fetch` and `rows`. The attributes here
    concern the file and the commit group; the tables are read and written in the views.
    """

    def __init__(
        self,
        folder: Path,
        *,
        audit_key: bytes | None = None,
        codec: Codec | None = None,
        limits: GroupLimits | None = None,
        marker: Path | None = None,
        tuning: SqliteTuning | None = None,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        """Opens nothing yet. `marker` is the path of the marker file, if a backup of the folder should not contain it;
        None: in the folder. `audit_key`: see `sessions.model.audit`."""
        self.path = folder / "journal.db"
        self._folder = folder
        self.codec: Codec = codec or PlainCodec()
        self._lock = FolderLock(folder)
        self._marker = Marker(marker or folder / "journal.marker")
        self._tuning = tuning or SqliteTuning()
        self._checkpoints: Checkpointer | None = None
        self._new_id = new_id
        self._group = GroupCommit(self._commit, limits)
        self.submit = self._group.submit
        self.write_bytes_max = self._group.limits.write_bytes_max
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
        self.sealer = Sealer(b"")  # seals the audit log; set by `open`

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
                for _ in range(self._tuning.num_readers):
                    reader = await self._connect(sqlite3.Connection)
                    self._readers.append(reader)
                    await reader.execute_fetchall("PRAGMA query_only = ON")
                    self._idle.put_nowait(reader)
                if self._tuning.checkpoints_beside and not self._tuning.checkpoints_elsewhere:
                    self._checkpoints = Checkpointer(
                        await aiosqlite.Connection(connector(self._connector(sqlite3.Connection)), 1),
                        pages=self._tuning.checkpoint_pages,
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
        log.debug("journal_opened", incarnation=self._incarnation, generation=self._generation)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._group.stop()
            await self._close_files()

    async def _close_files(self) -> None:
        """Closes the readers before the writer: the connection that closes last makes a checkpoint, and that must be
        the writer."""
        try:
            for connection in [*self._readers, self._checkpoints, self._writer]:
                try:
                    if connection is not None:
                        await connection.close()
                except sqlite3.Error:
                    log.exception("journal_close_failed")
            self._readers.clear()
            self._checkpoints = self._writer = None
            try:
                self._marker.close()
            except OSError:
                log.exception("journal_marker_failed")
        finally:
            self._lock.release()

    def _connector(self, factory: type[sqlite3.Connection]) -> Callable[[], sqlite3.Connection]:
        """Returns a function that connects to the file. It is written here because `aiosqlite.connect` uses the
        system's SQLite."""
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
        last_resort = LAST_RESORT if self._tuning.checkpoints_beside else 1
        if self._tuning.checkpoints_elsewhere:
            last_resort = 0
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            f"wal_autocheckpoint = {self._tuning.checkpoint_pages * last_resort}",
            "journal_size_limit = 67108864",
            "temp_store = MEMORY",
            "cache_size = -2048",  # KiB; what else is read often, the system keeps
        ):
            await writer.execute_fetchall(f"PRAGMA {pragma}")
        await check_integrity(writer, self.path, whole_bytes_max=self._tuning.quick_check_bytes_max)
        await migrate(writer, self.path)
        await refuse_leftovers(writer, self.path)
        await wipe_leftovers(writer, self.path)
        self.sealer = Sealer(await secret_of(writer), self._audit_key)

    async def _settle_incarnation(self) -> None:
        """Compares the store with its marker, and gives it a new incarnation if it went back. Begins the next
        generation, which is the number of this opening."""
        writer = self._writer
        assert writer is not None
        mark = self._marker.open()
        rows = list(
            await writer.execute_fetchall(
                "SELECT incarnation, fence, top FROM heads WHERE tenant = '' AND session = ''"
            )
        )
        incarnation, generation, commits = rows[0] if rows else ("", 0, 0)
        goes_on = mark is not None and mark.incarnation == incarnation and mark.position <= commits
        if not goes_on:
            if rows:
                log.warning("journal_incarnation_changed", last=incarnation, commits=commits, marker=str(mark))
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

    async def run(self, script: Callable[[], Script[T]]) -> T:
        """Runs a script as one write of the group commit and returns its result; it has no time-out."""
        write = JobWrite(STORE_KEY, lambda connection: run_script(connection, self.sealer, script()))
        return cast(T, await self.submit(write))

    async def _commit(self, writes: Sequence[Write]) -> Sequence[object]:
        """Commits a batch in one transaction; returns the result or the error of each write."""
        if self._dead is not None:
            return [self._dead] * len(writes)
        transaction = Transaction(
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
            log.exception("journal_write_refused", tenant=writes[0].key.tenant, session=writes[0].key.session)
            error = Internal("journal_refused", "This change cannot be stored.")
            error.__cause__ = exc
            return [error]
        except FAILURES as exc:
            failure = translate(exc)
            log.error("journal_commit_failed", code=failure.code, cause=repr(failure.__cause__), writes=len(writes))
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
        """Writes the marker, on the writer's thread, between a commit and its acknowledgement."""
        self._marker.write(self._incarnation, commits)
        if time.time() - self._marker.synced_at > MARKER_SYNC_S:
            self._marker.sync()

    # -- reads ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[aiosqlite.Connection]:
        """Lends a connection for reading. After a caller was cancelled its connection may be lent again at once,
        because it runs its statements in order."""
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

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Returns the rows of a read."""
        async with self.reader() as reader:
            return list(await reader.execute_fetchall(statement, values))

    async def rows(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        """Returns the rows of a statement with `$n` for its parameters. It sees every write that was acknowledged
        before the call."""
        await self.resolve_unknown()
        return await self.fetch(question_marks(text), *values)

    async def resolve_unknown(self) -> None:
        """Returns once a later commit has made it certain whether a commit with an unknown outcome is on the disk."""
        if self._unsure:
            await self.submit(JobWrite(STORE_KEY, no_op))


@lru_cache(maxsize=256)
def question_marks(text: str) -> str:
    """Returns a statement with SQLite's placeholders (`?1`) in place of PostgreSQL's (`$1`)."""
    return re.sub(r"\$(\d+)", r"?\1", text)


def run_script(connection: sqlite3.Connection, sealer: Sealer, script: Script[T]) -> T | SessileError:
    """Runs a script in the open transaction. An error that the script raises is returned, to be raised for the script's
    caller."""
    rows: list[Any] = []
    try:
        step = next(script)
        while True:
            match step:
                case Query(text, values):
                    rows = connection.execute(question_marks(text), values).fetchall()
                case Chain(entries):
                    chain(connection, sealer, entries)
            step = script.send(rows)
    except StopIteration as done:
        return cast(T, done.value)
    except SessileError as error:
        return error
