"""Runs a moderation worker process for the server: micro-batches, deadlines, and a new worker when one dies.

Texts that come while the worker works go out together as its next batch, so that a busy server's texts share one call
of each model and an idle server's text waits for nothing. Tenants take turns, text by text. Bounded: beyond
`WAITING_MAX` texts, a quarter of them of one tenant, the next one fails at once. Every future ends: with its result,
with `NotJudged` when the worker failed or it is late, or with `NotTaken` when no worker lived to read the text. A late
answer is dropped. A worker that keeps a batch for `HANG_S` is killed. The texts of a batch that a worker died of go
out again, each by itself, so that the one that killed it fails alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import structlog

from inference.moderation.worker_frames import JudgeItem, JudgeRequest, LoadRequest, Request, WorkerReply, read_reply
from inference.worker_process import encode_frame, end_worker, start_worker

log = structlog.get_logger(__name__)

WAITING_MAX: Final = 4_096
TENANT_SHARE: Final = 4  # one tenant may have one in so many of these
BATCH_TEXTS: Final = 64
BATCH_CHARACTERS: Final = 262_144
HANG_S: Final = 30.0
LOAD_S: Final = 120.0
RESTART_S: Final = 0.5


class NotJudged(Exception):
    """Raised if a text could not be judged; the policy decides what follows from that."""


class NotTaken(NotJudged):
    """Raised when no worker looked at a text: too many wait, or the worker died. Sent again, the text may be judged."""


class _PendingItem(NamedTuple):
    tenant: str
    item: JudgeItem
    scores: asyncio.Future[dict[str, Any]] | None  # where models judge it
    hits: asyncio.Future[list[Any]] | None  # where a policy is scanned for
    again: bool = False  # a worker died of the batch that it was in

    @property
    def over(self) -> bool:
        """Whether nobody waits for the item's results any more."""
        return all(future is None or future.done() for future in (self.scores, self.hits))

    def fail(self, why: str) -> None:
        for each in (self.scores, self.hits):
            if each is not None and not each.done():
                each.set_exception(NotTaken(why))


class WaitingTexts:
    """Texts that wait for a worker, taken from one tenant after the other."""

    def __init__(self) -> None:
        self._tenants: dict[str, deque[_PendingItem]] = {}  # in the order of their turns; none is empty
        self._count = 0

    def add(self, item: _PendingItem) -> bool:
        """Queues an item; returns False where too many wait already."""
        of_tenant = self._tenants.get(item.tenant, ())
        if self._count >= WAITING_MAX or len(of_tenant) >= max(1, WAITING_MAX // TENANT_SHARE):
            return False
        self._tenants.setdefault(item.tenant, deque()).append(item)
        self._count += 1
        return True

    def put_back(self, item: _PendingItem) -> None:
        """Makes an item its tenant's next one."""
        self._tenants.setdefault(item.tenant, deque()).appendleft(item)
        self._count += 1

    def next(self) -> _PendingItem | None:
        """Returns the next item without taking it. Items whose results nobody waits for any more are dropped."""
        while self._tenants:
            item = next(iter(self._tenants.values()))[0]
            if not item.over:
                return item
            self.take(moves_on=False)
        return None

    def take(self, *, moves_on: bool = True) -> _PendingItem:
        """Takes the next item. After it another tenant's item is next, unless `moves_on` is false."""
        tenant = next(iter(self._tenants))
        items = self._tenants[tenant]
        item = items.popleft()
        self._count -= 1
        if not items:
            del self._tenants[tenant]
        elif moves_on:
            self._tenants[tenant] = self._tenants.pop(tenant)
        return item

    def take_all(self) -> list[_PendingItem]:
        items = [item for each in self._tenants.values() for item in each]
        self._tenants.clear()
        self._count = 0
        return items


class ModerationWorkerClient:
    """One worker process. `start` before anything else; `close` ends it."""

    def __init__(self, name: str) -> None:
        self.versions: dict[str, str] = {}  # the versions of its models
        self.batches = self.texts = self.restarts = 0
        self._log = log.bind(worker=name)
        self._loaded: LoadRequest | None = None
        self._waiting = WaitingTexts()
        self._wakeup = asyncio.Event()
        self._lock = asyncio.Lock()  # one request at a time
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._spawn()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._end()
        self._fail(self._waiting.take_all(), "the server is closing")

    async def load(self, policies: bytes, models: Sequence[str]) -> None:
        """Loads policies and models into the worker. Raises NotJudged with the reason when it cannot."""
        request = LoadRequest(policies, tuple(models))
        async with self._lock:
            reply = await self._exchange(request, LOAD_S)
        if reply.error is not None:
            raise NotJudged(reply.error)
        self.versions = reply.versions
        self._loaded = request

    def classify(
        self, tenant: str, text: str, models: Sequence[str], timeout_s: float
    ) -> asyncio.Future[dict[str, Any]]:
        """Returns each model's result for a text."""
        scores = _due(timeout_s)
        self._submit(_PendingItem(tenant, JudgeItem(text, tuple(models), ""), scores, None))
        return scores

    def scan(self, tenant: str, text: str, version: str, timeout_s: float) -> asyncio.Future[list[Any]]:
        """Returns the hits of a policy's input side in a long text: (hit, start, end) each."""
        hits = _due(timeout_s)
        self._submit(_PendingItem(tenant, JudgeItem(text, (), version), None, hits))
        return hits

    def classify_and_scan(
        self, tenant: str, text: str, models: Sequence[str], version: str, timeout_s: float
    ) -> tuple[asyncio.Future[dict[str, Any]], asyncio.Future[list[Any]]]:
        """Classifies and scans a text in one request, which waits for a processor once instead of twice."""
        scores, hits = _due(timeout_s), _due(timeout_s)
        self._submit(_PendingItem(tenant, JudgeItem(text, tuple(models), version), scores, hits))
        return scores, hits

    def _submit(self, item: _PendingItem) -> None:
        if self._task is None or self._task.done() or not self._waiting.add(item):
            item.fail("too many texts wait")
            return
        self._wakeup.set()

    async def _run(self) -> None:
        while True:
            await self._wakeup.wait()
            batch = self._next_batch()
            if not batch:
                self._wakeup.clear()
                continue
            try:
                async with self._lock:
                    await self._work(batch)
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                self._log.error("moderation_worker_lost", error=repr(error))
                if len(batch) == 1:
                    self._fail(batch, "the moderation worker ended")
                for each in reversed(batch) if len(batch) > 1 else ():
                    self._waiting.put_back(each._replace(again=True))
                await self._restart()
            except BaseException:
                self._fail(batch, "the server is closing")
                raise

    def _next_batch(self) -> list[_PendingItem]:
        """Takes the waiting texts of the next batch: those that models judge together. A text that is only scanned for
        patterns, or that was in a batch of which a worker died, is a batch by itself."""
        batch: list[_PendingItem] = []
        characters = 0
        while len(batch) < BATCH_TEXTS and (item := self._waiting.next()) is not None:
            characters += len(item.item.text)
            alone = item.again or not item.item.models
            if batch and (alone or characters > BATCH_CHARACTERS):
                break
            batch.append(self._waiting.take())
            if alone:
                break
        return batch

    async def _work(self, batch: list[_PendingItem]) -> None:
        reply = await self._exchange(JudgeRequest(tuple(pending.item for pending in batch)), HANG_S)
        self.batches += 1
        self.texts += len(batch)
        if reply.error is not None:
            self._log.error("moderation_failed", error=reply.error)
            self._fail(batch, reply.error)
            return
        for each, result in zip(batch, reply.results, strict=True):
            self._resolve(each.scores, result.scores)
            self._resolve(each.hits, result.hits)

    def _resolve(self, future: asyncio.Future[Any] | None, result: Any) -> None:
        if isinstance(result, str):
            self._log.error("moderation_failed", error=result)
        _resolve(future, result)

    async def _exchange(self, request: Request, timeout_s: float) -> WorkerReply:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise EOFError("there is no worker")
        async with asyncio.timeout(timeout_s):
            process.stdin.write(encode_frame(request))
            await process.stdin.drain()
            return await read_reply(process.stdout)

    async def _spawn(self) -> None:
        self._process = await start_worker("inference.moderation.worker")

    async def _restart(self) -> None:
        """Starts a new worker, with all that the old one had loaded."""
        while True:
            await self._end()
            self.restarts += 1
            await asyncio.sleep(RESTART_S)
            try:
                await self._spawn()
                if self._loaded is not None:
                    async with self._lock:
                        await self._exchange(self._loaded, LOAD_S)
                return
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                self._log.error("moderation_worker_lost", error=repr(error))
                self._fail(self._waiting.take_all(), "the moderation worker does not start")

    async def _end(self) -> None:
        process, self._process = self._process, None
        await end_worker(process)

    @staticmethod
    def _fail(items: Iterable[_PendingItem], why: str) -> None:
        for each in items:
            each.fail(why)


def _due(timeout_s: float) -> asyncio.Future[Any]:
    """Returns a future that fails with NotJudged after `timeout_s` seconds."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    timer = loop.call_later(timeout_s, _resolve, future, "late")
    future.add_done_callback(lambda _: timer.cancel())
    return future


def _resolve(future: asyncio.Future[Any] | None, result: Any) -> None:
    """Ends a future with a result. If `result` is a text, it is the reason why there is none, and the future fails with
    NotJudged."""
    if future is None or future.done():
        return
    if isinstance(result, str):
        future.set_exception(NotJudged(result))
    else:
        future.set_result(result)
