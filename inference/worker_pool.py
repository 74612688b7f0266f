"""Keeps a pool of worker processes that answer one request at a time, as frames of `worker_process`.

Bounded: `waiting_max` requests may wait for a worker, the next one is refused with a time to come back. A worker that
ends in the middle of a request costs a second try in a new one, and no more.

Invariants: every call ends. A cancelled call lets its worker finish, or end, before the next one gets it. Workers start
with the first call, and end with `close`, or with the server's pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from inference.worker_process import encode_frame, end_worker, start_worker
from sessions.model.errors import Overloaded, Unavailable

START_S: Final = 30.0
EXIT_S: Final = 5.0  # in which a process whose pipe has ended is awaited

Request = TypeVar("Request", bound=msgspec.Struct)
Reply = TypeVar("Reply")


class WorkerEnded(Exception):
    """Raised if a worker process has ended, or was ended because it had not answered in time. `signal`: what ended it;
    None: it was not waited for any longer. `used`: whether it had answered earlier requests."""

    def __init__(self, signal: int | None, used: bool) -> None:
        super().__init__("no answer" if signal is None else f"signal {signal}")
        self.signal = signal
        self.used = used


class WorkerCommand(NamedTuple, Generic[Reply]):
    """Describes a worker: its module with the arguments, how its replies are read, in how many seconds one must have
    come, and in how many it must have started. The module writes one reply when it is ready."""

    module: str
    arguments: tuple[str, ...]
    read_reply: Callable[[asyncio.StreamReader], Awaitable[Reply]]
    answer_s: float
    start_s: float = START_S


class PoolErrors(NamedTuple):
    """The errors that callers of a pool get: too many wait, no worker can be started or kept."""

    overloaded: Callable[[], Overloaded]
    unavailable: Callable[[], Unavailable]


class WorkerPool(Generic[Request, Reply]):
    """A pool of worker processes of one kind."""

    def __init__(self, command: WorkerCommand[Reply], errors: PoolErrors, *, workers: int, waiting_max: int) -> None:
        self._errors = errors
        self._waiting_max = waiting_max
        self._free: asyncio.LifoQueue[_Worker[Request, Reply]] = asyncio.LifoQueue()
        self.workers = [_Worker[Request, Reply](command, errors) for _ in range(workers)]
        for worker in self.workers:
            self._free.put_nowait(worker)
        self._waiting = 0
        self._tasks: set[asyncio.Task[Reply]] = set()
        self._closed = False

    async def close(self) -> None:
        """Ends the workers. Requests in progress, and those that wait for a worker, raise Unavailable."""
        self._closed = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        for worker in self.workers:
            await worker.end()

    async def exchange(self, request: Request, on_end: Callable[[WorkerEnded], Reply | None]) -> Reply:
        """Has a worker answer a request. `on_end` is called for each worker that ends with it, and returns the answer
        if its end is one; else a new worker gets the request once more. Raises Overloaded, Unavailable."""
        if self._waiting >= self._waiting_max:
            raise self._errors.overloaded()
        self._waiting += 1
        try:
            worker = await self._free.get()
        finally:
            self._waiting -= 1
        if self._closed:
            self._free.put_nowait(worker)  # for the next who waits, to end in the same way
            raise _closing()
        task = asyncio.create_task(self._try(worker, request, on_end))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._done(task, worker))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._closed and task.cancelled():
                raise _closing() from None
            raise

    def _done(self, task: asyncio.Task[Reply], worker: _Worker[Request, Reply]) -> None:
        self._tasks.discard(task)
        self._free.put_nowait(worker)
        if not task.cancelled():
            task.exception()  # whoever left does not read it

    async def _try(
        self, worker: _Worker[Request, Reply], request: Request, on_end: Callable[[WorkerEnded], Reply | None]
    ) -> Reply:
        for _ in range(2):
            try:
                return await worker.exchange(request)
            except WorkerEnded as ended:
                reply = on_end(ended)
                if reply is not None:
                    return reply
        raise self._errors.unavailable()


class _Worker(Generic[Request, Reply]):
    """One worker process, started when it is needed."""

    def __init__(self, command: WorkerCommand[Reply], errors: PoolErrors) -> None:
        self._command = command
        self._errors = errors
        self.process: asyncio.subprocess.Process | None = None

    async def exchange(self, request: Request) -> Reply:
        """Returns the process's answer. Raises WorkerEnded, and Unavailable if it cannot be started."""
        process = self.process
        used = process is not None and process.returncode is None
        if process is None or not used:
            process = await self._start()
        whole = False
        try:
            assert process.stdin is not None and process.stdout is not None
            async with asyncio.timeout(self._command.answer_s):
                process.stdin.write(encode_frame(request))
                await process.stdin.drain()
                reply = await self._command.read_reply(process.stdout)
            whole = True
            return reply
        except TimeoutError as exc:
            raise WorkerEnded(None, used) from exc
        except (OSError, EOFError, ValueError) as exc:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXIT_S):
                    await process.wait()
            ended_by = -process.returncode if process.returncode is not None else signal.SIGKILL
            raise WorkerEnded(ended_by, used) from exc
        finally:
            if not whole:
                await self.end()

    async def end(self) -> None:
        process, self.process = self.process, None
        await end_worker(process)

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            async with asyncio.timeout(self._command.start_s):
                process = await start_worker(self._command.module, *self._command.arguments)
                self.process = process
                assert process.stdout is not None
                await self._command.read_reply(process.stdout)  # ready
                return process
        except (OSError, EOFError, TimeoutError, ValueError) as exc:
            with contextlib.suppress(OSError):
                await self.end()
            raise self._errors.unavailable() from exc


def _closing() -> Unavailable:
    return Unavailable("draining", "This server is shutting down.", retry_after_ms=1_000)
