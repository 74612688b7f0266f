"""Judges JSON schemas for the server: from memory where they are known, else in a pool of worker processes.

A request that takes a worker longer than its CPU time, or more memory, ends it, and is refused. A worker that ended
otherwise (killed from outside, or silent for `HANG_S`) says nothing of the schema, nor does one that ran out of memory
with the schemas of earlier requests still compiled: there is a second try, in a new one, and no more.
Bounded: `WAITING_MAX` requests may wait for a worker, the next one is refused with a time to come back.

Invariants: every call ends. A cancelled call lets its worker finish, or end, before the next one gets it. Workers start
with the first call or `start`, and end with `close`, or with the server's pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from types import TracebackType
from typing import Final

import structlog

from inference.schemas.frames import SchemaReply, SchemaRequest, read_reply
from inference.worker_process import encode_frame, end_worker, start_worker
from sessions.metrics import Metrics
from sessions.model.errors import Overloaded, Unavailable
from sessions.model.json_schema import SchemaFault
from sessions.model.schema_bounds import SchemaSize
from sessions.model.types import Json
from sessions.schemas import KnownSchemas, encode_schema, schema_digest

log = structlog.get_logger(__name__)

WORKERS: Final = 2
WAITING_MAX: Final = 256
CPU_MS: Final = 200
MEMORY_MIB: Final = 96
HANG_S: Final = 5.0
START_S: Final = 30.0
_TOO_LONG: Final = SchemaFault("It takes too long to check")
_TOO_MUCH: Final = SchemaFault("It takes too much memory to check")
_LIMITS: Final[dict[int, SchemaFault]] = {
    signal.SIGPROF: _TOO_LONG,
    signal.SIGABRT: _TOO_MUCH,
    signal.SIGSEGV: _TOO_MUCH,
}  # by what ended it


class _WorkerEnded(Exception):
    """Raised if a worker process has ended. `fault`: which limit of CPU time or memory it exceeded; None: it ended for
    another reason, which says nothing about the schema."""

    def __init__(self, fault: SchemaFault | None) -> None:
        super().__init__(fault.message if fault is not None else "killed")
        self.fault = fault


class SchemaWorkers:
    """A pool of worker processes, as a `SchemaChecker`. Use as a context manager: no process outlives it."""

    def __init__(self, metrics: Metrics | None = None, *, workers: int = WORKERS, cpu_ms: int = CPU_MS) -> None:
        self._ended = (metrics or Metrics()).schema_workers
        self._known = KnownSchemas()
        self._cpu_ms = cpu_ms
        self._free: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        self._workers = [_Worker(cpu_ms) for _ in range(workers)]
        for worker in self._workers:
            self._free.put_nowait(worker)
        self._waiting = 0
        self._tasks: set[asyncio.Task[SchemaReply]] = set()
        self._closed = False

    async def __aenter__(self) -> SchemaWorkers:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the workers. Requests in progress, and those that wait for a worker, raise Unavailable."""
        self._closed = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        for worker in self._workers:
            await worker.end()

    async def judge(self, schema: dict[str, Json]) -> SchemaSize | SchemaFault:
        encoded = encode_schema(schema)
        if isinstance(encoded, SchemaFault):
            return encoded
        digest = schema_digest(encoded)
        known = self._known.get(digest)
        if known is None:
            reply = await self._run(SchemaRequest(encoded))
            known = reply.fault or reply.size or _TOO_MUCH
            self._known.put(digest, known)
        return known

    async def value_problem(self, schema: dict[str, Json], value: str) -> str | None:
        encoded = encode_schema(schema)
        if isinstance(encoded, SchemaFault):
            return f"its schema cannot be used: {encoded}"
        reply = await self._run(SchemaRequest(encoded, value))
        if reply.fault is not None:
            return f"they cannot be checked: {reply.fault}"
        return reply.problem

    async def _run(self, request: SchemaRequest) -> SchemaReply:
        if self._waiting >= WAITING_MAX:
            raise Overloaded("overloaded", "Too many schemas wait to be checked.", retry_after_ms=1_000)
        self._waiting += 1
        try:
            worker = await self._free.get()
        finally:
            self._waiting -= 1
        if self._closed:
            self._free.put_nowait(worker)  # for the next who waits, to end in the same way
            raise _closing()
        task = asyncio.create_task(self._try(worker, request))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._done(task, worker))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._closed and task.cancelled():
                raise _closing() from None
            raise

    def _done(self, task: asyncio.Task[SchemaReply], worker: _Worker) -> None:
        self._tasks.discard(task)
        self._free.put_nowait(worker)
        if not task.cancelled():
            task.exception()  # whoever left does not read it

    async def _try(self, worker: _Worker, request: SchemaRequest) -> SchemaReply:
        """Has a worker answer a request, in a new process if the worker's own has ended. Raises Unavailable if none can
        be started."""
        for _ in range(2):
            used = worker.used
            try:
                return await worker.exchange(request)
            except _WorkerEnded as ended:
                self._ended.add("killed" if ended.fault is None else "limit")
                log.warning("schema_worker_ended", reason=str(ended))
                if ended.fault is not None and not (used and ended.fault is _TOO_MUCH):
                    return SchemaReply(fault=ended.fault)
        raise _unavailable()


class _Worker:
    """One worker process, started when it is needed."""

    def __init__(self, cpu_ms: int) -> None:
        self._cpu_ms = cpu_ms
        self._process: asyncio.subprocess.Process | None = None

    @property
    def used(self) -> bool:
        """Whether the process has answered before, so that it has compiled schemas in memory."""
        return self._process is not None and self._process.returncode is None

    async def exchange(self, request: SchemaRequest) -> SchemaReply:
        process = self._process if self.used else None
        if process is None:
            process = await self._start()
        whole = False
        try:
            assert process.stdin is not None and process.stdout is not None
            async with asyncio.timeout(HANG_S):
                process.stdin.write(encode_frame(request))
                await process.stdin.drain()
                reply = await read_reply(process.stdout)
            whole = True
            return reply
        except TimeoutError as exc:  # the machine stands still, or it would have used up its time
            raise _WorkerEnded(None) from exc
        except (OSError, EOFError, ValueError) as exc:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HANG_S):
                    await process.wait()
            by = -process.returncode if process.returncode is not None else signal.SIGKILL
            raise _WorkerEnded(_LIMITS.get(by)) from exc
        finally:
            if not whole:
                await self.end()

    async def end(self) -> None:
        process, self._process = self._process, None
        await end_worker(process)

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            async with asyncio.timeout(START_S):
                self._process = process = await start_worker(
                    "inference.schemas.worker", str(self._cpu_ms), str(MEMORY_MIB)
                )
                assert process.stdout is not None
                await read_reply(process.stdout)  # ready
                return process
        except (OSError, EOFError, TimeoutError, ValueError) as exc:
            await self.end()
            raise _unavailable() from exc


def _unavailable() -> Unavailable:
    return Unavailable("schemas_unavailable", "Schemas cannot be checked at the moment.", retry_after_ms=1_000)


def _closing() -> Unavailable:
    return Unavailable("draining", "This server is shutting down.", retry_after_ms=1_000)
