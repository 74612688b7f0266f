"""The gate before vLLM: at most so many runs, fair between tenants, and waiters that leave nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from inference.concurrency_gate import ConcurrencyGate, GatedRun
from inference.fair_queue import MARGIN
from sessions.model.errors import Overloaded
from sessions.model.types import TenantId


def gated(tenant: str = "t", priority: int = 0, *, pauses: bool = True, prompt_tokens: int = 8) -> GatedRun:
    return GatedRun(TenantId(tenant), priority, 1.0, prompt_tokens, pauses=pauses)


async def let_in(gate: ConcurrencyGate, tenant: str = "t", priority: int = 0, *, pauses: bool = True) -> GatedRun:
    run = gated(tenant, priority, pauses=pauses)
    await gate.acquire(run)
    return run


async def test_a_cancelled_waiter_leaves_nothing_even_when_its_turn_has_come() -> None:
    gate = ConcurrencyGate(1, 1)
    for handed_over in (False, True):
        running = await let_in(gate)
        waiter = asyncio.create_task(let_in(gate))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await let_in(gate)
        if handed_over:
            gate.leave(running)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert gate.waiting == 0
        gate.leave(running)
    assert gate.running == 0 and gate.num_shed == 2
    gate.queue.check_integrity()


async def test_a_tenant_that_floods_lets_another_one_in_at_once() -> None:
    gate = ConcurrencyGate(2, 16)
    flood = [asyncio.create_task(let_in(gate, "flood")) for _ in range(8)]
    await asyncio.sleep(0)
    runs = [task.result() for task in flood if task.done()]
    assert len(runs) == 2
    for run in runs:
        gate.on_output(run, 2 * int(MARGIN))
    other = asyncio.create_task(let_in(gate, "other"))
    await asyncio.sleep(0)
    (victim,) = [run for run in runs if run.yields]
    gate.give_way(victim)
    again = asyncio.create_task(gate.acquire(victim))
    gate.on_output(await other, 1)
    assert gate.num_preempted == 1 and not again.done() and gate.running == 2
    gate.leave(other.result())
    await asyncio.wait_for(again, 1.0)  # it keeps its place before its tenant's others
    assert sum(task.done() for task in flood) == 2
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
