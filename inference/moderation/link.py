"""The server's end of a moderation worker: micro-batches, deadlines, and a new worker when one dies.

What is asked while the worker works waits and goes out together as its next batch, so that a busy server's texts share
one call of each model and an idle server's text waits for nothing. Bounded: more than `WAITING_MAX` texts and the next
one fails at once. Every future ends: with its result, with `NotJudged` when the worker erred or died, or when it is
late. A late answer is thrown away. A worker that keeps a batch for `HANG_S` is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from inference.moderation.wire import Judge, Load, Reply, Request, Scan, frame, read_reply

log = structlog.get_logger(__name__)

ROOT: Final = Path(__file__).resolve().parents[2]
WAITING_MAX: Final = 4_096
BATCH_TEXTS: Final = 64
BATCH_CHARACTERS: Final = 262_144
HANG_S: Final = 30.0
LOAD_S: Final = 120.0
RESTART_S: Final = 0.5


class NotJudged(Exception):
    """No judgement came: the policy says what that means."""


class _Asked:
    __slots__ = ("future", "models", "text", "version")

    def __init__(self, text: str, models: tuple[str, ...], version: str, future: asyncio.Future[Any]) -> None:
        self.text = text
        self.models = models  # empty: scan
        self.version = version
        self.future = future


class WorkerLink:
    """One worker process. `start` before anything else; `close` ends it."""

    def __init__(self, name: str) -> None:
        self.versions: dict[str, str] = {}  # of the models that it has
        self.batches = self.texts = self.restarts = 0
        self._log = log.bind(worker=name)
        self._loaded: Load | None = None
        self._waiting: deque[_Asked] = deque()
        self._bell = asyncio.Event()
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
        request = Load(policies, tuple(models))
        async with self._lock:
            reply = await self._exchange(request, LOAD_S)
        if reply.error is not None:
            raise NotJudged(reply.error)
        self.versions = reply.result
        self._loaded = request

    def ask(self, text: str, models: Sequence[str], timeout_s: float) -> asyncio.Future[dict[str, Any]]:
        """What each of the models says of a text."""
        return self._submit(text, tuple(models), "", timeout_s)

    def scan(self, version: str, text: str, timeout_s: float) -> asyncio.Future[list[Any]]:
        """The hits of a policy's input side in a long text."""
        return self._submit(text, (), version, timeout_s)

    def _submit(self, text: str, models: tuple[str, ...], version: str, timeout_s: float) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if len(self._waiting) >= WAITING_MAX or self._task is None or self._task.done():
            future.set_exception(NotJudged("too many texts wait"))
            return future
        timer = loop.call_later(timeout_s, _late, future)
        future.add_done_callback(lambda _: timer.cancel())
        self._waiting.append(_Asked(text, models, version, future))
        self._bell.set()
        return future

    async def _run(self) -> None:
        while True:
            await self._bell.wait()
            batch = self._next_batch()
            if not batch:
                self._bell.clear()
                continue
            try:
                async with self._lock:
                    await self._work(batch)
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                self._fail(batch, "the moderation worker ended")
                self._log.error("moderation_worker_lost", error=repr(error))
                await self._begin_again()
            except BaseException:
                self._fail(batch, "the server is closing")
                raise

    def _next_batch(self) -> list[_Asked]:
        """Texts for the models together; a scan by itself."""
        batch: list[_Asked] = []
        characters = 0
        while self._waiting and len(batch) < BATCH_TEXTS:
            first = self._waiting[0]
            if first.future.done():  # too late
                self._waiting.popleft()
                continue
            characters += len(first.text)
            if batch and (not first.models or not batch[0].models or characters > BATCH_CHARACTERS):
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _work(self, batch: list[_Asked]) -> None:
        first = batch[0]
        request: Request = Judge(tuple((each.text, each.models) for each in batch))
        if not first.models:
            request = Scan(first.version, first.text)
        reply = await self._exchange(request, HANG_S)
        self.batches += 1
        self.texts += len(batch)
        if reply.error is not None:
            self._log.error("moderation_failed", error=reply.error)
            self._fail(batch, reply.error)
            return
        results = reply.result if first.models else [reply.result]
        for each, result in zip(batch, results, strict=True):
            if not each.future.done():
                each.future.set_result(result)

    async def _exchange(self, request: Request, timeout_s: float) -> Reply:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise EOFError("there is no worker")
        async with asyncio.timeout(timeout_s):
            process.stdin.write(frame(request))
            await process.stdin.drain()
            return await read_reply(process.stdout)

    async def _spawn(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "inference.moderation.worker",
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )

    async def _begin_again(self) -> None:
        """A new worker with what the old one had loaded."""
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
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    @staticmethod
    def _fail(asked: Sequence[_Asked] | deque[_Asked], why: str) -> None:
        for each in asked:
            if not each.future.done():
                each.future.set_exception(NotJudged(why))


def _late(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(NotJudged("late"))
