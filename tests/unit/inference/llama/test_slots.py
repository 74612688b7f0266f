"""Slots and the queue before them: never two sessions in one slot, never a slot leaked, nobody overtaken."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.llama.scheduling import EngineRun, Scheduler
from inference.llama.slots import Slot, SlotTable
from inference.tokens import as_tokens, common_prefix
from sessions.model.errors import Overloaded, Unavailable
from tests.support.kv import key

NAMES = st.sampled_from(["a", "b", "c", "d"])
TOKENS = st.lists(st.integers(0, 2), max_size=6)


class SlotMachine(RuleBasedStateMachine):
    """Sessions come and go over three slots, as the engine drives the table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(3)
        self.held: dict[int, tuple[Slot, str]] = {}  # what we were given and have not given back

    @rule(name=NAMES, prompt=TOKENS)
    def acquire(self, name: str, prompt: list[int]) -> None:
        idle = [slot for slot in self.table if not slot.busy]
        own = [slot for slot in idle if slot.key == key(name)]
        empty = [slot for slot in idle if slot.key is None]
        slot = self.table.acquire(key(name), as_tokens(prompt))
        if slot is None:
            assert not idle
            return
        assert slot in idle and slot.number not in self.held
        if own:
            most = max(common_prefix(other.tokens, as_tokens(prompt)) for other in own)
            assert slot in own and common_prefix(slot.tokens, as_tokens(prompt)) == most
        elif empty:
            assert slot in empty
        else:
            assert slot.key is not None
            ranks = [(not other.parked, other.used) for other in idle]
            assert (not slot.parked, slot.used) == min(ranks)
        self.table.assign(slot, key(name))
        assert slot.key == key(name)
        self.held[slot.number] = (slot, name)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tokens=TOKENS)
    def release(self, data: st.DataObject, tokens: list[int]) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        slot, _ = self.held.pop(number)
        if slot.key is not None:
            slot.tokens = as_tokens(tokens)
        self.table.release(slot)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        for slot in self.table.of(key(name)):
            self.table.forget(slot)
        assert self.table.of(key(name)) == []

    @rule(name=NAMES)
    def park(self, name: str) -> None:
        for slot in self.table.of(key(name)):
            slot.parked = True

    @invariant()
    def books_agree(self) -> None:
        self.table.check_integrity()
        assert {slot.number for slot in self.table if slot.busy} == set(self.held)
        assert self.table.num_busy == len(self.held)
        for slot, name in self.held.values():
            assert slot.key in (key(name), None)
        for slot in self.table:
            if not slot.busy and slot.key is None:
                assert not slot.tokens and not slot.saved_tokens


TestSlots = SlotMachine.TestCase


def test_a_slot_that_passes_to_another_session_is_empty_of_the_first() -> None:
    table = SlotTable(1)
    slot = table.acquire(key("a"), as_tokens([]))
    assert slot is not None
    table.assign(slot, key("a"))
    slot.tokens, slot.saved_tokens = as_tokens([1, 2, 3]), 3
    table.release(slot)
    again = table.acquire(key("b"), as_tokens([1, 2, 3]))
    assert again is slot and slot.key == key("a")  # the caller may save it first
    table.assign(slot, key("b"))
    assert not slot.tokens and slot.saved_tokens == 0


# -- the queue -----------------------------------------------------------------------------------------


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def take(scheduler: Scheduler, name: str, priority: int = 0) -> EngineRun:
    run = EngineRun(key(name), as_tokens([1]), priority)
    scheduler.table.assign(await scheduler.acquire(run), key(name))
    return run


async def test_waiters_are_served_by_priority_then_in_order() -> None:
    scheduler = Scheduler(SlotTable(1), 10)
    slot = await take(scheduler, "holder")
    served: list[str] = []

    async def wait(name: str, priority: int) -> None:
        mine = await take(scheduler, name, priority)
        served.append(name)
        scheduler.leave(mine)

    tasks = [asyncio.create_task(wait(name, p)) for name, p in (("x", 1), ("y", 0), ("z", 0), ("w", -1))]
    await turns()
    assert scheduler.num_waiting == 4 and scheduler.try_acquire(EngineRun(key("q"), as_tokens([1]))) is None
    scheduler.leave(slot)
    await asyncio.gather(*tasks)
    assert served == ["w", "y", "z", "x"]
    assert scheduler.num_waiting == 0 and scheduler.table.num_busy == 0


async def test_a_full_queue_sheds() -> None:
    scheduler = Scheduler(SlotTable(1), 1)
    slot = await take(scheduler, "a")
    waiter = asyncio.create_task(take(scheduler, "b"))
    await turns()
    with pytest.raises(Overloaded):
        await take(scheduler, "c")
    assert scheduler.num_shed == 1
    scheduler.leave(slot)
    scheduler.leave(await waiter)


async def test_a_waiter_whose_cancellation_has_not_run_yet_keeps_nobody_from_a_free_slot() -> None:
    scheduler = Scheduler(SlotTable(1), 10)
    slot = await take(scheduler, "holder")
    waiter = asyncio.create_task(take(scheduler, "b"))
    await turns()
    waiter.cancel()
    scheduler.leave(slot)
    async with asyncio.timeout(5):  # no task in between: the cancelled one must not have its turn first
        await take(scheduler, "c")


async def test_a_waiter_cancelled_in_the_moment_of_its_turn_gives_the_slot_back() -> None:
    scheduler = Scheduler(SlotTable(1), 10)
    slot = await take(scheduler, "a")
    first, second = asyncio.create_task(take(scheduler, "b")), asyncio.create_task(take(scheduler, "c"))
    await turns()
    scheduler.leave(slot)  # `first` has been given the slot but has not run yet
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    scheduler.leave(await second)
    assert scheduler.table.num_busy == 0 and scheduler.num_waiting == 0


async def test_refusing_all_ends_every_wait() -> None:
    scheduler = Scheduler(SlotTable(1), 10)
    slot = await take(scheduler, "a")
    waiters = [asyncio.create_task(take(scheduler, name)) for name in "bcd"]
    await turns()
    scheduler.refuse_all(Unavailable("engine_unavailable", "closed"))
    for waiter in waiters:
        with pytest.raises(Unavailable):
            await waiter
    assert scheduler.num_waiting == 0
    scheduler.leave(slot)
    assert scheduler.table.num_busy == 0


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


# -- who is computed first -----------------------------------------------------------------------------------


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
    assert await asyncio.wait_for(scheduler.wait_to_prefill(other), 1), "it goes first"
    scheduler.on_output(other, 1)
    assert sorted(await asyncio.wait_for(asyncio.gather(*gates), 1)) == [False, True, True]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
