"""The pool of worker processes, on the workers that judge schemas."""

from __future__ import annotations

import asyncio
import signal

import pytest

from inference.schemas.frames import SchemaReply, SchemaRequest, read_reply
from inference.worker_pool import PoolErrors, WorkerCommand, WorkerEnded, WorkerPool
from sessions.model.errors import Overloaded, Unavailable

COMMAND = WorkerCommand("inference.schemas.worker", ("200", "96"), read_reply, 60.0)
ERRORS = PoolErrors(lambda: Overloaded("overloaded", "full"), lambda: Unavailable("schemas_unavailable", "none"))
REQUEST = SchemaRequest(b"{}")


def pool_of(
    command: WorkerCommand[SchemaReply] = COMMAND, *, waiting_max: int = 1
) -> WorkerPool[SchemaRequest, SchemaReply]:
    return WorkerPool(command, ERRORS, workers=1, waiting_max=waiting_max)


def no_answer(_: WorkerEnded) -> None:
    return None


async def test_who_waits_beyond_the_bound_is_refused_and_a_close_ends_who_waits() -> None:
    pool = pool_of()
    running = asyncio.create_task(pool.exchange(REQUEST, no_answer))
    waiting = asyncio.create_task(pool.exchange(REQUEST, no_answer))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await pool.exchange(REQUEST, no_answer)
    await pool.close()
    for call in (running, waiting):
        with pytest.raises(Unavailable) as refused:
            await call
        assert refused.value.code == "draining"


async def test_a_cancelled_call_leaves_its_worker_to_the_next() -> None:
    pool = pool_of()
    try:
        left = asyncio.create_task(pool.exchange(REQUEST, no_answer))
        await asyncio.sleep(0)
        left.cancel()
        assert (await pool.exchange(REQUEST, no_answer)).size is not None
        assert left.cancelled()
    finally:
        await pool.close()


async def test_a_worker_that_is_killed_is_followed_by_a_new_one_or_its_end_is_the_answer() -> None:
    pool = pool_of()
    refusal = SchemaReply(problem="it was killed")
    ends: list[tuple[int | None, bool]] = []

    def on_end(ended: WorkerEnded) -> SchemaReply | None:
        ends.append((ended.signal, ended.used))
        return refusal if len(ends) > 1 else None

    try:
        await pool.exchange(REQUEST, no_answer)
        for expected in (None, refusal.problem):
            (worker,) = pool.workers
            assert worker.process is not None and worker.process.stdin is not None
            worker.process.send_signal(signal.SIGSTOP)  # so that it is there when the request comes
            call = asyncio.create_task(pool.exchange(REQUEST, on_end))
            await asyncio.sleep(0)
            worker.process.send_signal(signal.SIGKILL)
            assert (await call).problem == expected
        assert ends == [(signal.SIGKILL, True)] * 2
    finally:
        await pool.close()


async def test_a_worker_that_cannot_be_started_is_an_error() -> None:
    pool = pool_of(COMMAND._replace(module="inference.no_such_module"))
    with pytest.raises(Unavailable) as refused:
        await pool.exchange(REQUEST, no_answer)
    assert refused.value.code == "schemas_unavailable"
    await pool.close()
