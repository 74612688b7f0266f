"""Who gets a slot next: by priority, without loss when waiters are cancelled, with room made for others."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from inference.llama.scheduling import EngineRun, Scheduler
from inference.llama.slots import SlotTable
from inference.step_budget import StepBudget
from inference.tokens import as_tokens
from sessions.model.errors import Overloaded
from tests.support.engines.kv import key

PATIENCE_S = 60.0  # what never comes is waited for so long


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def take(scheduler: Scheduler, name: str, priority: int = 0) -> EngineRun:
    run = EngineRun(key(name), as_tokens([1]), priority)
    scheduler.table.assign(await scheduler.acquire(run), key(name))
    return run


async def test_a_waiter_whose_cancellation_has_not_run_yet_keeps_nobody_from_a_free_slot() -> None:
    scheduler = Scheduler(SlotTable(1), 10)
    slot = await take(scheduler, "holder")
    waiter = asyncio.create_task(take(scheduler, "b"))
    await turns()
    waiter.cancel()
    scheduler.leave(slot)
    async with asyncio.timeout(PATIENCE_S):  # no task in between: the cancelled one must not have its turn first
        await take(scheduler, "c")


@given(st.integers(0, 2**32))
def test_random_comings_goings_and_cancellations_leak_nothing(seed: int) -> None:
    async def scenario() -> None:
        chance = random.Random(seed)
        scheduler = Scheduler(SlotTable(2), 4)
        holding: list[EngineRun] = []
        tasks: list[asyncio.Task[None]] = []

        async def session(name: str) -> None:
            holding.append(await take(scheduler, name, chance.randrange(3)))

        for step in range(60):
            match chance.randrange(4):
                case 0 | 1:
                    tasks.append(asyncio.create_task(session(f"s{step}")))
                case 2 if holding:
                    scheduler.leave(holding.pop(chance.randrange(len(holding))))
                case 3 if tasks:
                    tasks[chance.randrange(len(tasks))].cancel()
            if chance.randrange(2):
                await asyncio.sleep(0)
            assert scheduler.table.num_busy <= 2 and 0 <= scheduler.num_waiting <= 4
        while any(not task.done() for task in tasks):
            await asyncio.sleep(0)
            while holding:
                scheduler.leave(holding.pop())
        while holding:
            scheduler.leave(holding.pop())
        for task in tasks:
            if not task.cancelled() and task.exception() is not None:
                assert isinstance(task.exception(), Overloaded)
        assert scheduler.table.num_busy == 0 and scheduler.num_waiting == 0

    asyncio.run(scenario())


async def test_one_that_runs_makes_room_for_a_better_priority_and_goes_on_afterwards() -> None:
    scheduler = Scheduler(SlotTable(1), 10)
    low = await take(scheduler, "low", 9)
    urgent = asyncio.create_task(take(scheduler, "urgent", 0))
    await turns()
    assert not low.yields, "it has said nothing yet: stopping it would lose all that it did"
    later = asyncio.create_task(take(scheduler, "later", 0))
    await turns()
    scheduler.on_output(low, 1)
    assert low.yields and low.slot is not None
    scheduler.give_way(low, low.slot)
    again = asyncio.create_task(scheduler.acquire(low))
    first = await urgent
    assert first.slot is not None and not later.done() and not again.done()
    scheduler.leave(first)
    scheduler.leave(await later)
    assert (await again).busy and scheduler.num_preempted == 1
    scheduler.leave(low)
    assert scheduler.table.num_busy == 0 and scheduler.num_waiting == 0
    scheduler.queue.check_integrity()


def of(tenant: str, name: str) -> EngineRun:
    return EngineRun(key(name, tenant), as_tokens([1]))


async def placed(scheduler: Scheduler, run: EngineRun) -> EngineRun:
    scheduler.table.assign(await scheduler.acquire(run), run.key)
    return run


async def test_a_slot_is_kept_for_another_tenant_and_given_to_it_at_once() -> None:
    scheduler = Scheduler(SlotTable(4), 10)
    flood = [await placed(scheduler, of("flood", f"f{number}")) for number in range(3)]
    other = await placed(scheduler, of("other", "o1"))
    for run in (*flood, other):
        scheduler.on_output(run, 1)
    assert sum(run.yields for run in flood) == 1, "no slot is idle: somebody gives one back behind its next token"
    giver = next(run for run in flood if run.yields)
    assert giver.slot is not None
    scheduler.give_way(giver, giver.slot)
    again = asyncio.create_task(scheduler.acquire(giver))
    await turns()
    assert not again.done() and scheduler.table.has_idle(), "it is kept"
    second = asyncio.create_task(scheduler.acquire(of("other", "o2")))
    await turns()
    assert second.done(), "nobody had to be asked first"
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)


async def test_prompts_of_who_goes_first_are_waited_for_piece_by_piece() -> None:
    scheduler = Scheduler(SlotTable(4), 100)
    flood = [await placed(scheduler, of("flood", f"f{number}")) for number in range(3)]
    assert not scheduler.gives_way(flood[0]), "alone it sends its prompt whole"
    other = await placed(scheduler, of("other", "o1"))
    waiting = [asyncio.create_task(scheduler.acquire(of("flood", f"w{number}"))) for number in range(6)]
    await turns()
    assert all(map(scheduler.gives_way, flood)) and not scheduler.gives_way(other)
    gates = [asyncio.create_task(scheduler.wait_to_prefill(run)) for run in flood]
    await turns()
    gone = [run for run, gate in zip(flood, gates, strict=True) if gate.done()]
    assert [run.yields for run in gone] == [True], "one makes room between two pieces, so that a slot is idle"
    assert not await gates[flood.index(gone[0])]
    assert await asyncio.wait_for(scheduler.wait_to_prefill(other), PATIENCE_S), "it goes first"
    scheduler.on_output(other, 1)
    assert sorted(await asyncio.wait_for(asyncio.gather(*gates), PATIENCE_S)) == [False, True, True]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


class Filling:
    """Runs that have slots and prompts to compute, and who was let into which step with how much."""

    def __init__(self, slots: int) -> None:
        self.scheduler = Scheduler(SlotTable(slots), 10)
        self.budget = StepBudget(3_600.0, 64)  # tokens
        self.runs: dict[str, EngineRun] = {}
        self.asked: dict[str, asyncio.Task[int]] = {}

    async def ask(self, name: str, lacks: int) -> None:
        if name not in self.runs:
            self.runs[name] = await take(self.scheduler, name)
        self.asked[name] = asyncio.create_task(self.scheduler.take_step(self.runs[name], lacks, self.budget))
        await turns()

    def admitted(self) -> dict[str, int]:
        return {name: task.result() for name, task in self.asked.items() if task.done()}

    async def over(self, name: str) -> None:
        del self.asked[name]
        self.scheduler.end_step(self.runs[name])
        await turns()


async def test_a_step_is_shared_by_short_rests_and_what_is_left_of_it_goes_to_one_long_prompt() -> None:
    filling = Filling(6)
    await filling.ask("short", 40)
    await filling.ask("long", 4_000)
    await filling.ask("other", 4_000)
    assert filling.admitted() == {"short": 40, "long": 24}
    await filling.ask("second", 30)
    assert filling.admitted() == {"short": 40, "long": 24}, "the step is full"
    await filling.over("long")
    assert filling.admitted() == {"short": 40}, "a short rest goes before the next piece of a long prompt"
    await filling.over("short")
    assert filling.admitted() == {"second": 30, "other": 34}
    await filling.ask("long", 3_976)
    await filling.over("other")
    await filling.ask("other", 3_966)
    assert filling.admitted() == {"second": 30, "long": 34}, "long ones take turns"
