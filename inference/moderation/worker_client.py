"""Runs a moderation worker process for the server: micro-batches, deadlines, and a new worker when one dies.

Texts that come while the worker works go out together as its next batch, so that a busy server's texts share one call
of each model and an idle server's text waits for nothing. Bounded: beyond `WAITING_MAX` texts the next one fails at
once. Every future ends: with its result, or with `NotJudged` when the worker failed or died or it is late. A late
answer is dropped. A worker that keeps a batch for `HANG_S` is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import structlog

from inference.moderation.worker_frames import (
    JudgeItem,
    JudgeRequest,
    LoadRequest,
    Request,
    WorkerReply,
    read_reply,
)
from inference.worker_process import encode_frame, end_worker, start_worker

log = structlog.get_logger(__name__)

WAITING_MAX: Final = 4_096
BATCH_TEXTS: Final = 64
BATCH_CHARACTERS: Final = 262_144
HANG_S: Final = 30.0
LOAD_S: Final = 120.0
RESTART_S: Final = 0.5


class NotJudged(Exception):
    """A text could not be judged: the policy decides what that means."""


class _PendingItem(NamedTuple):
    item: JudgeItem
    scores: asyncio.Future[dict[str, Any]] | None  # where models judge it
    hits: asyncio.Future[list[Any]] | None  # where a policy is scanned for

    @property
    def over(self) -> bool:
        """Whether nothing waits for it any more."""
        return all(each is None or each.done() for each in (self.scores, self.hits))

    def fail(self, why: str) -> None:
        for each in (self.scores, self.hits):
            _resolve(each, why)


class ModerationWorkerClient:
    """One worker process. `start` before anything else; `close` ends it."""

    def __init__(self, name: str) -> None:
        self.versions: dict[str, str] = {}  # of the models that it has
        self.batches = self.texts = self.restarts = 0
        self._log = log.bind(worker=name)
        self._loaded: LoadRequest | None = None
        self._waiting: deque[_PendingItem] = deque()
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
        self._fail(self._waiting, "the server is closing")
        self._waiting.clear()

    async def load(self, policies: bytes, models: Sequence[str]) -> None:
        """Raises NotJudged with the reason when the worker cannot."""
        request = LoadRequest(policies, tuple(models))
        async with self._lock:
            reply = await self._exchange(request, LOAD_S)
        if reply.error is not None:
            raise NotJudged(reply.error)
        self.versions = reply.versions
        self._loaded = request

    def classify(self, text: str, models: Sequence[str], timeout_s: float) -> asyncio.Future[dict[str, Any]]:
        """Returns each model's result for a text."""
        scores = _due(timeout_s)
        self._submit(_PendingItem(JudgeItem(text, tuple(models), ""), scores, None))
        return scores

    def scan(self, text: str, version: str, timeout_s: float) -> asyncio.Future[list[Any]]:
        """Returns the hits of a policy's input side in a long text: (hit, start, end) each."""
        hits = _due(timeout_s)
        self._submit(_PendingItem(JudgeItem(text, (), version), None, hits))
        return hits

    def classify_and_scan(
        self, text: str, models: Sequence[str], version: str, timeout_s: float
    ) -> tuple[asyncio.Future[dict[str, Any]], asyncio.Future[list[Any]]]:
        """Does both at once: one wait for a processor instead of two."""
        scores, hits = _due(timeout_s), _due(timeout_s)
        self._submit(_PendingItem(JudgeItem(text, tuple(models), version), scores, hits))
        return scores, hits

    def _submit(self, item: _PendingItem) -> None:
        if len(self._waiting) >= WAITING_MAX or self._task is None or self._task.done():
            item.fail("too many texts wait")
            return
        self._waiting.append(item)
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
                self._fail(batch, "the moderation worker ended")
                self._log.error("moderation_worker_lost", error=repr(error))
                await self._restart()
            except BaseException:
                self._fail(batch, "the server is closing")
                raise

    def _next_batch(self) -> list[_PendingItem]:
        """Takes waiting texts: those for models together, one for patterns alone by itself."""
        batch: list[_PendingItem] = []
        characters = 0
        while self._waiting and len(batch) < BATCH_TEXTS:
            first = self._waiting[0]
            if first.over:  # too late
                self._waiting.popleft()
                continue
            characters += len(first.item.text)
            if batch and (not first.item.models or not batch[0].item.models or characters > BATCH_CHARACTERS):
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _work(self, batch: list[_PendingItem]) -> None:
        reply = await self._exchange(JudgeRequest(tuple(each.item for each in batch)), HANG_S)
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
                self._fail(self._waiting, "the moderation worker does not start")
                self._waiting.clear()

    async def _end(self) -> None:
        process, self._process = self._process, None
        await end_worker(process)

    @staticmethod
    def _fail(items: Sequence[_PendingItem] | deque[_PendingItem], why: str) -> None:
        for each in items:
            each.fail(why)


def _due(timeout_s: float) -> asyncio.Future[Any]:
    """Returns a future that fails after so long."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    timer = loop.call_later(timeout_s, _resolve, future, "late")
    future.add_done_callback(lambda _: timer.cancel())
    return future


def _resolve(future: asyncio.Future[Any] | None, result: Any) -> None:
    """Ends a future; text in place of a result is why there is none."""
    if future is None or future.done():
        return
    if isinstance(result, str):
        future.set_exception(NotJudged(result))
    else:
        future.set_result(result)
