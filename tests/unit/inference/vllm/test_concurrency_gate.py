"""The gate before vLLM: at most so many runs, by priority, and waiters that leave nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from inference.vllm.concurrency_gate import ConcurrencyGate
from sessions.model.errors import Overloaded, Unavailable


async def test_the_gate_serves_by_priority_then_in_order() -> None:
    gate = ConcurrencyGate(1, 8)
    await gate.acquire(0)
    served: list[str] = []

    async def wait(name: str, priority: int) -> None:
        await gate.acquire(priority)
        served.append(name)
        gate.release()

    async with asyncio.TaskGroup() as group:
        for name, priority in (("late", 5), ("first", 0), ("second", 0), ("urgent", -1)):
            group.create_task(wait(name, priority))
            await asyncio.sleep(0)
        gate.release()
    assert served == ["urgent", "first", "second", "late"]
    assert (gate.running, gate.waiting) == (0, 0)


async def test_a_cancelled_waiter_leaves_nothing_even_when_its_turn_has_come() -> None:
    gate = ConcurrencyGate(1, 1)
    await gate.acquire(0)
    for handed_over in (False, True):
        waiter = asyncio.create_task(gate.acquire(0))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await gate.acquire(0)
        if handed_over:
            gate.release()
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert gate.waiting == 0
    assert gate.running == 0 and gate.num_shed == 2


async def test_a_closed_gate_tells_everybody() -> None:
    gate = ConcurrencyGate(1, 4)
    await gate.acquire(0)
    waiters = [asyncio.create_task(gate.acquire(0)) for _ in range(3)]
    await asyncio.sleep(0)
    gate.refuse_all(Unavailable("engine_unavailable", "closed"))
    for waiter in waiters:
        with pytest.raises(Unavailable):
            await waiter
    assert gate.running == 1 and gate.waiting == 0
