"""Judges JSON schemas for the server: from memory where they are known, else in a pool of worker processes.

A request that takes a worker longer than its CPU time, or more memory, ends it, and is refused. A worker that ended
otherwise (killed from outside, or silent for `HANG_S`) says nothing of the schema, nor does one that ran out of memory
with the schemas of earlier requests still compiled: there is a second try, in a new one (`worker_pool`).
"""

from __future__ import annotations

import signal
from types import TracebackType
from typing import Final

import structlog

from inference.schemas.frames import SchemaReply, SchemaRequest, read_reply
from inference.worker_pool import PoolErrors, WorkerCommand, WorkerEnded, WorkerPool
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
_TOO_LONG: Final = SchemaFault("It takes too long to check")
_TOO_MUCH: Final = SchemaFault("It takes too much memory to check")
_LIMITS: Final[dict[int, SchemaFault]] = {
    signal.SIGPROF: _TOO_LONG,
    signal.SIGABRT: _TOO_MUCH,
    signal.SIGSEGV: _TOO_MUCH,
}  # by what ended it


class SchemaWorkers:
    """A pool of worker processes, as a `SchemaChecker`. Use as a context manager: no process outlives it."""

    def __init__(self, metrics: Metrics | None = None, *, workers: int = WORKERS, cpu_ms: int = CPU_MS) -> None:
        self._ended = (metrics or Metrics()).schema_workers
        self._known = KnownSchemas()
        command = WorkerCommand("inference.schemas.worker", (str(cpu_ms), str(MEMORY_MIB)), read_reply, HANG_S)
        errors = PoolErrors(_overloaded, _unavailable)
        self.pool = WorkerPool[SchemaRequest, SchemaReply](command, errors, workers=workers, waiting_max=WAITING_MAX)

    async def __aenter__(self) -> SchemaWorkers:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the workers. Requests in progress, and those that wait for a worker, raise Unavailable."""
        await self.pool.close()

    async def judge(self, schema: dict[str, Json]) -> SchemaSize | SchemaFault:
        encoded = encode_schema(schema)
        if isinstance(encoded, SchemaFault):
            return encoded
        digest = schema_digest(encoded)
        known = self._known.get(digest)
        if known is None:
            reply = await self.pool.exchange(SchemaRequest(encoded), self._on_end)
            known = reply.fault or reply.size or _TOO_MUCH
            self._known.put(digest, known)
        return known

    async def value_problem(self, schema: dict[str, Json], value: str) -> str | None:
        encoded = encode_schema(schema)
        if isinstance(encoded, SchemaFault):
            return f"its schema cannot be used: {encoded}"
        reply = await self.pool.exchange(SchemaRequest(encoded, value), self._on_end)
        if reply.fault is not None:
            return f"they cannot be checked: {reply.fault}"
        return reply.problem

    def _on_end(self, ended: WorkerEnded) -> SchemaReply | None:
        """Returns the refusal if a worker exceeded a limit of CPU time or memory with a schema. Returns None if its end
        says nothing of the schema."""
        fault = _LIMITS.get(ended.signal) if ended.signal is not None else None
        self._ended.add("killed" if fault is None else "limit")
        log.warning("schema_worker_ended", reason=str(ended) if fault is None else fault.message)
        if fault is None or (ended.used and fault is _TOO_MUCH):
            return None
        return SchemaReply(fault=fault)


def _overloaded() -> Overloaded:
    return Overloaded("overloaded", "Too many schemas wait to be checked.", retry_after_ms=1_000)


def _unavailable() -> Unavailable:
    return Unavailable("schemas_unavailable", "Schemas cannot be checked at the moment.", retry_after_ms=1_000)
