"""Group commit: many small writes from many sessions become few transactions.

Decides which writes share a transaction, and in which order; what a transaction does is the store's business.

* Every write is answered once: with its result, with its own error, or not at all if its caller was cancelled.
* A batch holds at most one write per session, in key order. A second write of a session waits for the next batch, so
  that it sees what the first one left.
* Batches run one after another, so a store needs no lock of its own.
* Everything is bounded: a batch in writes, rows and bytes, the queue in writes and bytes (then Overloaded).
* While the store is busy, writes collect by themselves. When it is idle and the last batch was of several sessions, the
  first write waits `gather_s` for others, because the sessions of an engine's step write one after the other. A write
  of several rows does not wait: it begins or ends an answer, and a client waits for that. Under load a batch begins no
  earlier than `pace_s` after the one before it, or `crowded_pace` times that if that one had many writes: each batch
  costs a sync and some fixed work, and a page that several of its writes touch is written once.

A caller that is cancelled while its write waits takes it back; one that is cancelled later may find it done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import structlog

from persistence.validation import closed
from sessions.model.errors import OutcomeUnknown, Overloaded
from sessions.model.types import SessionKey

log = structlog.get_logger(__name__)


class GroupLimits(msgspec.Struct, frozen=True, kw_only=True):
    batch_writes_max: int = 256
    batch_rows_max: int = 1024
    batch_bytes_max: int = 4 * 2**20
    pending_writes_max: int = 16_384
    pending_bytes_max: int = 64 * 2**20
    write_bytes_max: int = 16 * 2**20
    gather_s: float = 0.001
    pace_s: float = 0.002
    pace_from_writes: int = 8  # a batch smaller than this is not load: the next one goes at once
    crowded_pace: float = 3.0  # times `pace_s`
    crowded_from_writes: int = 16  # writes in `pace_s`: about 8,000 writes a second


class Write:
    """One session's write on its way into a batch. Stores derive classes from it with the data that they write."""

    __slots__ = ("future", "key", "rows", "size")

    def __init__(self, key: SessionKey, *, rows: int, size: int) -> None:
        self.key = key
        self.rows = rows
        self.size = size
        self.future: asyncio.Future[Any] | None = None


Outcomes = Sequence[object]  # one per write: what its caller gets, or the exception that it gets


class GroupCommit:
    """Collects writes and passes them in batches to `commit`, from one task between `start` and `stop`.

    `commit` gets the writes in key order and returns their outcomes in the same order. If it raises, that is a bug of
    ours: every caller of the batch gets OutcomeUnknown, and the next batch runs.
    """

    def __init__(
        self, commit: Callable[[Sequence[Write]], Awaitable[Outcomes]], limits: GroupLimits | None = None
    ) -> None:
        self._commit = commit
        self.limits = limits or GroupLimits()
        self._pending: deque[Write] = deque()
        self._pending_bytes = 0
        self._batch: list[Write] = []
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop  # set by `start`
        self._task: asyncio.Task[None] | None = None
        self._open = False

    def start(self) -> None:
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="journal-writer")

    async def stop(self) -> None:
        """Lets accepted writes finish; later ones are refused. Idempotent."""
        self._open = False
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    def submit(self, write: Write) -> asyncio.Future[Any]:
        """Queues a write. Returns a future that ends with the result or error of its transaction. Raises Unavailable
        after `stop`, Overloaded if the queue is full."""
        if not self._open:
            raise closed()
        limits = self.limits
        if (
            len(self._pending) >= limits.pending_writes_max
            or self._pending_bytes + write.size > limits.pending_bytes_max
        ):
            raise Overloaded("journal_overloaded", "Too much waits to be stored.", retry_after_ms=250)
        write.future = future = self._loop.create_future()
        self._pending.append(write)
        self._pending_bytes += write.size
        if len(self._pending) == 1:
            self._wake.set()
        return future

    async def _run(self) -> None:
        try:
            await self._commit_batches()
        finally:  # reached with writes in hand only when the event loop is being torn down
            self._open = False
            resolve_writes(self._batch, [outcome_unknown(None)] * len(self._batch))
            resolve_writes(self._pending, [closed()] * len(self._pending))

    async def _commit_batches(self) -> None:
        loop = asyncio.get_running_loop()
        limits = self.limits
        several = False
        while True:
            if not self._pending:
                if not self._open:
                    return
                self._wake.clear()
                await self._wake.wait()
                # What the same moment brings shares the first batch, or streams that speak together would go on one by
                # one, a batch for each. `stop` wakes us with nothing at all.
                waits = several and self._pending and self._pending[0].rows == 1
                await asyncio.sleep(limits.gather_s if waits else 0)
            self._batch = batch = self._take()
            if not batch:
                continue
            started_s = loop.time()
            try:
                outcomes: Outcomes = await self._commit(batch)
            except Exception as exc:
                log.exception("journal_commit_crashed", writes=len(batch))
                outcomes = [outcome_unknown(exc)] * len(batch)
            resolve_writes(batch, outcomes)
            self._batch = []
            several = len(batch) > 1
            if len(batch) >= limits.pace_from_writes and self._open:
                many = len(batch) >= limits.crowded_from_writes
                rest_s = started_s + limits.pace_s * (limits.crowded_pace if many else 1) - loop.time()
                if rest_s > 0:
                    await asyncio.sleep(rest_s)

    def _take(self) -> list[Write]:
        """Takes the next batch off the queue, sorted by session key."""
        limits = self.limits
        pending = self._pending
        if len(pending) == 1:
            write = pending.popleft()
            self._pending_bytes -= write.size
            return [] if write.future is None or write.future.done() else [write]
        batch: list[Write] = []
        keys: set[SessionKey] = set()
        later: list[Write] = []
        rows = size = 0
        while pending and len(batch) < limits.batch_writes_max and len(later) < limits.batch_writes_max:
            write = pending[0]
            if write.future is None or write.future.done():
                self._pending_bytes -= write.size
                pending.popleft()
            elif write.key in keys:
                later.append(pending.popleft())
            elif batch and (rows + write.rows > limits.batch_rows_max or size + write.size > limits.batch_bytes_max):
                break
            else:
                rows += write.rows
                size += write.size
                keys.add(write.key)
                batch.append(pending.popleft())
        pending.extendleft(reversed(later))
        self._pending_bytes -= size
        batch.sort(key=attrgetter("key"))
        return batch


def resolve_writes(writes: Sequence[Write] | deque[Write], outcomes: Outcomes) -> None:
    """Sets each write's outcome as the result or error that its caller waits for, unless the caller was cancelled."""
    for write, outcome in zip(writes, outcomes, strict=True):
        future = write.future
        if future is None or future.done():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def outcome_unknown(cause: BaseException | None) -> OutcomeUnknown:
    error = OutcomeUnknown("journal_outcome_unknown", "The store failed in an unforeseen way.")
    error.__cause__ = cause
    return error
