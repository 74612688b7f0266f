"""vLLM's death as the engine's front half sees it, without vLLM: who waits, and who is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from inference.concurrency_gate import ConcurrencyGate, GatedRun
from inference.vllm import supervisor as module
from inference.vllm.supervisor import VllmSupervisor
from sessions.model.errors import Unavailable
from sessions.model.types import TenantId
from tests.support.virtual_time import virtual


class Ground:
    """A gate and its supervisor, over a vLLM that is two flags."""

    def __init__(self) -> None:
        self.gate = ConcurrencyGate(1, 8)
        self.is_dead = False
        self.refusals = 0
        self.deaths = 0
        self.starts = 0
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.supervisor = VllmSupervisor(
            self.gate, is_dead=lambda: self.is_dead, on_death=self._on_death, restart=self._restart
        )
        self.supervisor.started()

    async def let_in(self) -> GatedRun:
        run = GatedRun(TenantId("t"), 0, 1.0, 8, pauses=False)
        await self.gate.acquire(run)
        return run

    def _on_death(self) -> None:
        self.deaths += 1

    async def _restart(self, wanted: Callable[[], bool]) -> None:
        await self.may_start.wait()
        if not wanted():
            return
        if self.refusals:
            self.refusals -= 1
            raise OSError("no memory")
        self.starts += 1
        self.is_dead = False


@virtual
async def test_a_death_that_nobody_hears_of_is_found_by_looking() -> None:
    ground = Ground()
    ground.is_dead = True
    await asyncio.sleep(module.WATCH_S * 1.5)
    await ground.supervisor.restarted()
    assert (ground.deaths, ground.starts, ground.supervisor.unavailable) == (1, 1, None)
    await ground.supervisor.close()


@virtual
async def test_who_waits_goes_on_waiting_and_runs_when_it_is_back() -> None:
    ground = Ground()
    running = await ground.let_in()
    before = asyncio.create_task(ground.let_in())
    await asyncio.sleep(0)
    ground.may_start.clear()
    ground.supervisor.mark_dead()
    ground.supervisor.mark_dead()
    ground.gate.leave(running)
    assert ground.supervisor.refusal is None
    after = asyncio.create_task(ground.let_in())
    await asyncio.sleep(30.0)
    assert not before.done() and not after.done() and ground.gate.waiting == 2
    ground.may_start.set()
    second = await before
    assert ground.deaths == 1 and not after.done()
    ground.gate.leave(second)
    await after
    await ground.supervisor.close()


@virtual
async def test_when_it_does_not_start_everybody_is_told_until_it_does() -> None:
    ground = Ground()
    ground.refusals = len(module.AGAIN_S) + 2
    ground.may_start.clear()
    ground.supervisor.mark_dead()
    waiting = asyncio.create_task(ground.let_in())
    await asyncio.sleep(0)
    ground.may_start.set()
    with pytest.raises(Unavailable) as told:
        await waiting
    assert told.value.retryable and ground.supervisor.refusal is ground.supervisor.unavailable is told.value
    await ground.supervisor.restarted()
    assert ground.starts == 1 and ground.supervisor.refusal is None
    await ground.let_in()
    await ground.supervisor.close()


@virtual
async def test_closed_while_it_begins_again_it_stays_closed() -> None:
    ground = Ground()
    ground.may_start.clear()
    ground.supervisor.mark_dead()
    waiting = asyncio.create_task(ground.let_in())
    await asyncio.sleep(0)
    closing = asyncio.create_task(ground.supervisor.close())
    with pytest.raises(Unavailable) as told:
        await waiting
    assert "closed" in told.value.public_message
    ground.may_start.set()
    await closing
    assert ground.starts == 0 and ground.supervisor.refusal is told.value
