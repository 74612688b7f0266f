"""A store's PostgreSQL: one connection for group commits, a pool for everything else.

* A batch of appends is one statement and one round trip (`statements.py`). Two replicas that believe in the same
  session meet at its row: heads are locked in key order, and the fence is compared again after the wait (I1).
* `synchronous_commit` is on for every connection, whatever the server's default is.
* A connection that breaks is made anew at the next call. Reads are repeated once; a batch or a grant that got no answer
  is OutcomeUnknown. The new writer connection first moves this process's own row in `writers`: that waits for a lost
  batch which still runs in the server, and makes one fail that has not begun. `resolve_unknown` returns only after
  that, so what is read afterwards is final.
* Every new connection checks that the store did not go back in time (`incarnation.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import structlog

from persistence.codec import Codec, PlainCodec
from persistence.data_dir import Marker
from persistence.folder_lock import FolderLock, unusable_data_dir
from persistence.group_commit import GroupCommit, GroupLimits, Write
from persistence.postgres import statements as sql
from persistence.postgres.audit_rows import (
    TRIES,
    ChainedEntries,
    HeadCache,
    chain_entries,
    lock_chain,
    secret_of,
    too_much_contention,
)
from persistence.postgres.connection import PooledConnection, connection_settings, terminate
from persistence.postgres.error_mapping import FAILURES, NO_ANSWER, ONE_WRITE_IS_BAD, translate, unavailable
from persistence.postgres.incarnation import KnownPosition, settle_incarnation
from persistence.postgres.schema import migrate
from persistence.sql.script import Chain, Lock, LockChain, Query, Script
from persistence.validation import closed, fenced
from persistence.write_batch import AppendWrite
from sessions.model.audit import Sealer
from sessions.model.errors import Internal, OutcomeUnknown, Unavailable

log = structlog.get_logger(__name__)

NO_WAITING: Final = (ValueError, asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InsufficientPrivilegeError)
"""Errors of opening a store that waiting does not mend."""

CONNECTIONS_MAX: Final = 8
MARKER_SYNC_S: Final = 1.0
RECONNECT_S: Final = 0.25

Connection = Any  # asyncpg's, direct or from its pool
T = TypeVar("T")


class PostgresDatabase:
    """A schema of a PostgreSQL database; usable from `open` to `close`.

    The journal and the views write through `submit`, `transaction` and `run`, and read through `fetch` and `rows`. The
    attributes here concern connections and the commit group; the tables are read and written in the views.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "sessile",
        marker_folder: Path | None = None,
        audit_key: bytes | None = None,
        codec: Codec | None = None,
        limits: GroupLimits | None = None,
        timeout_s: float = 10.0,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        """Connects to nothing yet. `marker_folder` is where this process keeps its position over restarts (one folder
        per process); None: nowhere. `audit_key`: see `sessions.model.audit`. `timeout_s` bounds each wait for the
        server."""
        self._dsn = dsn
        self._schema = schema
        self.codec: Codec = codec or PlainCodec()
        self._lock = FolderLock(marker_folder) if marker_folder else None
        self._marker = Marker(marker_folder / "journal.marker") if marker_folder else None
        self._timeout_s = timeout_s
        self._new_id = new_id
        self._group = GroupCommit(self._commit, limits)
        self.submit = self._group.submit
        self.write_bytes_max = self._group.limits.write_bytes_max
        self._audit_key = audit_key
        self.sealer = Sealer(b"")  # seals the audit log; set by `open`
        self._chains = HeadCache()
        self._pool: Any = None
        self._writer: Connection | None = None
        self._connecting = asyncio.Lock()
        self._retry_at_s = 0.0
        self._last_failure: BaseException | None = None
        self._writer_id = ""
        self._incarnation = ""
        self._commits = 0  # the count in our row of `writers`, as the next batch expects it
        self._acknowledged = 0
        self._unsure = False  # a batch got no answer, and no later one has settled what became of it
        self._closed = False

    @property
    def incarnation(self) -> str:
        return self._incarnation

    # -- life -------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._lock is not None:
            self._lock.take()
        try:
            try:
                self._read_marker()
                first = await asyncpg.connect(**self._settings())
                try:
                    await migrate(first, self._schema)
                    self.sealer = Sealer(await secret_of(first), self._audit_key)
                    await self._check(first)
                    if await first.fetchval("SHOW fsync") != "on":
                        log.warning("journal_fsync_disabled", consequence="a power cut can lose what was acknowledged")
                finally:
                    first.terminate()
                self._pool = await asyncpg.create_pool(
                    min_size=0,
                    max_size=CONNECTIONS_MAX,
                    init=self._check,
                    connection_class=PooledConnection,
                    **self._settings(),
                )
                await self._writer_connection()
            except (*FAILURES, ValueError) as exc:
                raise self._cannot_open(exc) from exc
            self._group.start()
        except BaseException:
            await self._disconnect()
            raise
        log.debug("journal_opened", incarnation=self._incarnation, writer=self._writer_id)

    def _read_marker(self) -> None:
        """Reads the writer's id, incarnation and position of this process's last run from the marker, if there is
        one."""
        try:
            mark = self._marker.open() if self._marker else None
        except OSError as exc:
            assert self._marker is not None
            raise unusable_data_dir(self._marker.path.parent, exc) from exc
        self._writer_id = mark.writer if mark and mark.writer else self._new_id()
        if mark and mark.writer:
            self._incarnation, self._acknowledged = mark.incarnation, mark.position

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._group.stop()
            await self._disconnect()

    async def _disconnect(self) -> None:
        try:
            if self._writer is not None:
                self._writer.terminate()
            if self._pool is not None:
                try:
                    await asyncio.wait_for(self._pool.close(), self._timeout_s)
                except (*FAILURES, asyncio.CancelledError):
                    self._pool.terminate()
                    raise
        except FAILURES as exc:
            log.warning("journal_close_failed", cause=repr(exc))
        finally:
            try:
                if self._marker is not None:
                    self._marker.close()
            except OSError as exc:
                log.warning("journal_marker_failed", cause=repr(exc))
            if self._lock is not None:
                self._lock.release()

    def _settings(self) -> dict[str, Any]:
        return connection_settings(self._dsn, self._schema, self._timeout_s)

    async def _check(self, connection: Connection) -> None:
        """Checks a new connection, before it is used, for a store that went back in time."""
        known = KnownPosition(writer=self._writer_id, incarnation=self._incarnation, acknowledged=self._acknowledged)
        now_known = await settle_incarnation(connection, known, self._new_id)
        if now_known.incarnation != self._incarnation:
            if self._incarnation:
                log.warning("journal_incarnation_changed", last=self._incarnation, now=now_known.incarnation)
            self._incarnation = now_known.incarnation

    async def _writer_connection(self) -> Connection:
        """Returns the connection for batches, and makes it if there is none. Raises Unavailable."""
        async with self._connecting:
            if self._writer is not None and not self._writer.is_closed():
                return self._writer
            if self._closed:
                raise closed()
            loop = asyncio.get_running_loop()
            if self._last_failure is not None and loop.time() < self._retry_at_s:
                raise unavailable(self._last_failure)
            connection: Connection | None = None
            try:
                connection = await asyncpg.connect(**self._settings())
                await self._check(connection)
                commits = await connection.fetchval(sql.WRITER, self._writer_id)
            except BaseException as exc:
                if connection is not None:
                    connection.terminate()
                if isinstance(exc, FAILURES):
                    self._last_failure, self._retry_at_s = exc, loop.time() + RECONNECT_S
                    raise unavailable(exc) from exc
                raise
            self._writer, self._commits, self._acknowledged = connection, commits, commits
            self._last_failure = None
            self._unsure = False
            return connection

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.terminate()
            self._writer = None

    def _cannot_open(self, exc: BaseException) -> Unavailable:
        parts = urlsplit(self._dsn)
        host = parts.netloc.rpartition("@")[2]
        place = f"{host or parts.query or 'the local socket'}{parts.path}"
        return Unavailable(
            "journal_unusable",
            f"PostgreSQL at {place} cannot be used ({exc.__cause__ or exc}). See that it runs and takes writes, and "
            "that the address, the user and the password are right.",
            retryable=not isinstance(exc, NO_WAITING),
        )

    # -- writes -----------------------------------------------------------------------------------------------------

    async def _commit(self, writes: Sequence[Write]) -> Sequence[object]:
        """Commits a batch in one transaction; returns the result or the error of each write."""
        appends = [write for write in writes if isinstance(write, AppendWrite)]
        lost: list[AppendWrite] = []  # those with rows for chains that were found fenced, and left out
        for _ in range(TRIES):
            outcomes = await self._committed(appends, lost)
            if outcomes is not None:
                return outcomes
        return [too_much_contention()] * len(writes)

    async def _committed(self, appends: Sequence[AppendWrite], lost: list[AppendWrite]) -> Sequence[object] | None:
        """Tries once to commit appends, except those in `lost`, which are fenced. Returns their outcomes; None if
        nothing was committed and the caller is to try again, because heads of chains were outdated or more appends
        turned out fenced (then they are added to `lost`)."""
        sent = [write for write in appends if write not in lost] if lost else appends
        audited = any(write.audit for write in sent)
        try:
            connection = await self._writer_connection()
        except Unavailable as exc:
            return [exc] * len(appends)
        try:
            chained = ChainedEntries(self.sealer, await self._chains.of(connection, sent), sent) if audited else None
            statement, columns = sql.batch_of(sent, chained)
            row = await connection.fetchrow(statement, self._writer_id, self._commits, *columns)
        except ONE_WRITE_IS_BAD as exc:
            self._chains.forget()
            if len(appends) > 1:
                return [outcome for write in appends for outcome in await self._commit([write])]
            log.exception("journal_write_refused", tenant=appends[0].key.tenant, session=appends[0].key.session)
            error = Internal("journal_refused", "This change cannot be stored.")
            error.__cause__ = exc
            return [error]
        except FAILURES as exc:
            self._chains.forget()
            failure = translate(exc)
            log.error("journal_commit_failed", code=failure.code, cause=repr(exc), writes=len(appends))
            self._unsure = self._unsure or isinstance(failure, OutcomeUnknown)
            self._drop_writer()
            await self._expire_pool(exc)
            return [failure] * len(appends)
        if not row["mine"]:
            if chained is not None and row["chained"] < chained.num_chains:
                self._chains.forget()  # another process wrote to one of the chains
                return None
            # Our row was moved: the store went back under us, or a clone of this process runs.
            self._drop_writer()
            return [unavailable(RuntimeError("the writer's row is not as it was left"))] * len(appends)
        self._commits += 1
        self._acknowledged = self._commits
        if chained is not None:
            held = set(row["held"])
            fenced_off = [write for no, write in enumerate(sent, 1) if write.audit and no not in held]
            if fenced_off:
                lost += fenced_off
                return None
            self._chains.moved(chained.behind)
        if self._marker is not None and not await self._mark(self._marker):
            return [OutcomeUnknown("journal_outcome_unknown", "The server's disk failed.")] * len(appends)
        won = {id(sent[no - 1]) for no in row["nos"]}
        return [None if id(write) in won else fenced() for write in appends]

    async def _mark(self, marker: Marker) -> bool:
        """Writes the marker, between a commit and its acknowledgement; returns False if the disk failed."""
        try:
            marker.write(self._incarnation, self._commits, self._writer_id)
            if time.time() - marker.synced_at > MARKER_SYNC_S:
                await asyncio.to_thread(marker.sync)
        except OSError as exc:
            log.error("journal_marker_failed", cause=repr(exc))
            return False
        return True

    # -- what the journal and the views build on ---------------------------------------------------------------------

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lends a connection of the pool. Raises Unavailable if none can be had."""
        if self._closed or self._pool is None:
            raise closed()
        try:
            connection = await self._pool.acquire(timeout=self._timeout_s)
        except FAILURES as exc:
            raise (closed() if self._closed else unavailable(exc)) from exc
        try:
            yield connection
        finally:
            await self._pool.release(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Opens a transaction on a connection of the pool. Raises Unavailable."""
        async with self.connection() as connection:
            try:
                async with connection.transaction():
                    yield connection
            except FAILURES as exc:
                if isinstance(exc, NO_ANSWER):
                    terminate(connection)
                raise translate(exc) from exc

    async def run(self, script: Callable[[], Script[T]]) -> T:
        """Runs a script in a transaction of its own and returns its result. Raises Unavailable."""
        async with self.transaction() as connection:
            steps = script()
            rows: list[Any] = []
            try:
                step = next(steps)
                while True:
                    match step:
                        case Query(text, values):
                            rows = await connection.fetch(text, *values)
                        case Lock(table):
                            await connection.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
                        case LockChain(tenant):
                            await lock_chain(connection, tenant)
                        case Chain(entries):
                            await chain_entries(connection, self.sealer, entries)
                    step = steps.send(rows)
            except StopIteration as done:
                return cast(T, done.value)

    async def rows(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        """Returns the rows of a statement. It sees every write that was acknowledged before the call. Raises
        Unavailable."""
        await self.resolve_unknown()
        return await self.fetch(text, *values)

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Returns the rows of a read, which is repeated on another connection if the first one was closed. Raises
        Unavailable."""
        for last in (False, True):
            async with self.connection() as connection:
                try:
                    return list(await connection.fetch(statement, *values))
                except FAILURES as exc:
                    if isinstance(exc, NO_ANSWER):
                        terminate(connection)
                        await self._expire_pool(exc)
                    failure = translate(exc)
                    if isinstance(failure, OutcomeUnknown):
                        failure = unavailable(exc)
                    if last or isinstance(exc, TimeoutError) or failure.code != "journal_away":
                        raise failure from exc
        raise AssertionError("unreachable")

    async def _expire_pool(self, exc: BaseException) -> None:
        """Makes the pool reconnect if `exc` is a time-out: other connections may be dead too, and each would cost
        another time-out."""
        if isinstance(exc, TimeoutError) and self._pool is not None:
            await self._pool.expire_connections()

    async def resolve_unknown(self) -> None:
        """Returns once it is certain whether a batch whose answer was lost is committed, so that a read shows it.
        Raises Unavailable."""
        if self._closed:
            raise closed()
        if self._unsure:
            await self._writer_connection()
