"""vLLM's death as the engine's front half sees it, without vLLM: who waits, who is refused, who runs alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from inference.vllm import supervisor as module
from inference.vllm.concurrency_gate import ConcurrencyGate
from inference.vllm.crash_isolation import CrashIsolation
from inference.vllm.supervisor import VllmSupervisor
from sessions.model.errors import Unavailable
from sessions.model.types import SessionId, SessionKey, TenantId
from tests.support.virtual_time import virtual


def key(name: str) -> SessionKey:
    return SessionKey(TenantId("t"), SessionId(name))


class Ground:
    """A gate and its revival, over a vLLM that is two flags."""

    def __init__(self) -> None:
        self.gate = ConcurrencyGate(1, 8)
        self.dead = False
        self.refusals = 0
        self.deaths = 0
        self.starts = 0
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.revival = VllmSupervisor(self.gate, is_dead=lambda: self.dead, died=self._died, again=self._again)
        self.revival.started()

    def _died(self) -> None:
        self.deaths += 1

    async def _again(self, wanted: Callable[[], bool]) -> None:
        await self.may_start.wait()
        if not wanted():
            return
        if self.refusals:
            self.refusals -= 1
            raise OSError("no memory")
        self.starts += 1
        self.dead = False


@virtual
async def test_a_death_that_nobody_hears_of_is_found_by_looking() -> None:
    ground = Ground()
    ground.dead = True
    await asyncio.sleep(module.WATCH_S * 1.5)
    await ground.revival.revived()
    assert (ground.deaths, ground.starts, ground.revival.gone) == (1, 1, None)
    await ground.revival.close()


@virtual
async def test_who_waits_goes_on_waiting_and_runs_when_it_is_back() -> None:
    ground = Ground()
    await ground.gate.acquire(0)
    before = asyncio.create_task(ground.gate.acquire(0))
    await asyncio.sleep(0)
    ground.may_start.clear()
    ground.revival.dead()
    ground.revival.dead()
    ground.gate.release()
    assert ground.revival.refuses is None
    after = asyncio.create_task(ground.gate.acquire(0))
    await asyncio.sleep(30.0)
    assert not before.done() and not after.done() and ground.gate.waiting == 2
    ground.may_start.set()
    await before
    assert ground.deaths == 1 and not after.done()
    ground.gate.release()
    await after
    await ground.revival.close()


@virtual
async def test_when_it_does_not_start_everybody_is_told_until_it_does() -> None:
    ground = Ground()
    ground.refusals = len(module.AGAIN_S) + 2
    ground.may_start.clear()
    ground.revival.dead()
    waiting = asyncio.create_task(ground.gate.acquire(0))
    await asyncio.sleep(0)
    ground.may_start.set()
    with pytest.raises(Unavailable) as told:
        await waiting
    assert told.value.retryable and ground.revival.refuses is ground.revival.gone is told.value
    await ground.revival.revived()
    assert ground.starts == 1 and ground.revival.refuses is None
    await ground.gate.acquire(0)
    await ground.revival.close()


@virtual
async def test_closed_while_it_begins_again_it_stays_closed() -> None:
    ground = Ground()
    ground.may_start.clear()
    ground.revival.dead()
    waiting = asyncio.create_task(ground.gate.acquire(0))
    await asyncio.sleep(0)
    closing = asyncio.create_task(ground.revival.close())
    with pytest.raises(Unavailable) as told:
        await waiting
    assert "closed" in told.value.public_message
    ground.may_start.set()
    await closing
    assert ground.starts == 0 and ground.revival.refuses is told.value


async def test_who_ran_when_it_died_begins_again_one_at_a_time() -> None:
    probation, began, go_on = CrashIsolation(), list[str](), asyncio.Event()
    probation.suspect([key("a"), key("b")])

    async def run(name: str, *, speaks: bool) -> None:
        async with probation.of(key(name)) as passed:
            began.append(name)
            if speaks:
                passed()
            await go_on.wait()

    first = asyncio.create_task(run("a", speaks=False))
    tasks = [asyncio.create_task(run("b", speaks=True)), asyncio.create_task(run("c", speaks=True))]
    await asyncio.sleep(0)
    assert began == ["a", "c"], "b waits until a has said something or ended; c was not there"
    first.cancel()
    await asyncio.wait([first])
    await asyncio.sleep(0)
    assert began == ["a", "c", "b"]
    assert key("a") in probation and key("b") not in probation
    go_on.set()
    await asyncio.gather(*tasks)
    await run("a", speaks=True)
    assert key("a") not in probation


async def test_a_suspect_that_is_cancelled_while_it_waits_leaves_nothing() -> None:
    probation = CrashIsolation()
    probation.suspect([key("a"), key("b")])
    async with probation.of(key("a")) as passed:
        waiting = asyncio.create_task(probation.of(key("b")).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        passed()
    probation.forget(key("b"))
    async with probation.of(key("b")):
        assert key("b") not in probation
