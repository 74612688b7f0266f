"""Slots: who gets one next, never two sessions in one, what is saved ahead."""

from __future__ import annotations

import array
import asyncio
import random
import struct
from collections.abc import Set
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.http_client import HttpClient
from inference.llama.eager_save import EagerSaver
from inference.llama.scheduling import EngineRun, Scheduler
from inference.llama.slot_kv import SlotKv, read_tokens
from inference.llama.slot_usage import SlotUsage
from inference.llama.slots import Slot, SlotTable
from inference.step_budget import StepBudget
from inference.tokens import as_tokens, common_prefix
from sessions.model.errors import Overloaded
from sessions.model.types import SessionKey, TenantId
from sessions.turn.images import image_ids
from tests.support.effort import effort
from tests.support.engines.engines import AlwaysRestores
from tests.support.engines.kv import key, make_tiers

# -- slots
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
TestSlots.settings = settings(max_examples=effort(30, 100))


def test_beside_what_a_session_goes_on_from_a_branch_that_it_has_left_is_overwritten() -> None:
    table = SlotTable(2)
    left, live = (table.acquire(key("a"), as_tokens([])) for _ in range(2))
    assert left is not None and live is not None
    for slot, tokens in ((left, [0, 1, 2, 3, 4, 5]), (live, [0, 1, 2, 6, 7, 8, 9])):
        table.assign(slot, key("a"))
        slot.tokens = as_tokens(tokens)
        table.release(slot)
    head = as_tokens([0, 77, 78])
    assert table.acquire(key("a"), head, beside=True) is left
    table.release(left)
    assert table.acquire(key("a"), head) is left, "it was used last now"


# -- scheduling
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


# -- eager save
class Saves:
    """A residency whose saves wait for `gate` and write down their order; `broken` ones change nothing."""

    def __init__(self, *, others: bool = True) -> None:
        self.tiers = SimpleNamespace(cold=())
        self.saved: list[str] = []
        self.broken: set[str] = set()
        self.others = others
        self.room = True
        self.gate = asyncio.Event()
        self.gate.set()

    def is_worth_saving(self, slot: Slot) -> bool:
        return slot.key is not None and len(slot.tokens) > slot.saved_tokens

    def has_evictable(self, resident: Set[SessionKey | None]) -> bool:
        return self.others

    def has_room_for_more(self) -> bool:
        return self.room

    def begin_save(self, slot: Slot) -> asyncio.Task[None]:
        async def save() -> None:
            await self.gate.wait()
            assert slot.key is not None
            self.saved.append(slot.key.session)
            if slot.key.session not in self.broken:
                slot.saved_tokens = len(slot.tokens)

        return asyncio.create_task(save())


def four_busy(saves: Saves) -> tuple[SlotTable, list[Slot], EagerSaver]:
    table = SlotTable(4)
    slots = []
    for name in "abcd":
        slot = table.acquire(key(name), array.array("I"))
        assert slot is not None
        table.assign(slot, key(name))
        slot.tokens = array.array("I", range(100))
        slots.append(slot)
    ahead = EagerSaver(table, cast(SlotKv, cast(Any, saves)), num_waiting=lambda: 0, save_idle_s=60.0)
    return table, slots, ahead


async def settled(ahead: EagerSaver) -> None:
    if ahead._task is not None:
        await ahead._task


async def test_beside_streams_only_the_next_in_line_is_kept_saved_and_the_rest_when_nobody_is_held_up() -> None:
    saves = Saves()
    table, slots, ahead = four_busy(saves)
    for slot in slots[:3]:
        table.release(slot)
        ahead.look()
        await settled(ahead)
    assert saves.saved == ["a"]
    taken = table.acquire(key("e"), array.array("I"))
    assert taken is slots[0], "who comes next finds it saved"
    ahead.look()
    await settled(ahead)
    assert saves.saved == ["a", "b"], "and then the next one in line is"
    for slot in (slots[0], slots[3]):
        table.release(slot)
    ahead.look()
    await settled(ahead)
    assert saves.saved == ["a", "b", "c", "d"]


# -- slot usage
SMALL, LARGE = TenantId("small"), TenantId("large")


def filled(*sessions: tuple[str, TenantId]) -> SlotTable:
    """A table whose slots hold 40 tokens each; the session `busy` is running."""
    table = SlotTable(len(sessions))
    for name, tenant in sessions:
        slot = table.acquire(key(name, tenant), array.array("I"))
        assert slot is not None
        table.assign(slot, key(name, tenant))
        slot.tokens = as_tokens(range(40))
        if name != "busy":
            table.release(slot)
    return table


async def test_sessions_at_rest_are_counted_and_the_one_used_longest_ago_is_shed(tmp_path: Path) -> None:
    table = filled(("s0", SMALL), ("s1", SMALL), ("l0", LARGE), ("busy", SMALL))
    usage = SlotUsage(table, make_tiers(tmp_path, 1 << 20).catalog, 1_000)
    assert usage.bytes_of(SMALL) == (120_000, 80_000) and usage.bytes_of(LARGE) == (40_000, 40_000)
    assert usage.device_bytes == 160_000
    assert usage.shed(SMALL)
    assert [slot.key and slot.key.session for slot in table] == [None, "s1", "l0", "busy"]
    next(slot for slot in table if slot.number == 1).saving = True
    assert not usage.shed(SMALL), "what is being saved, or is busy, stays"
    assert usage.bytes_of(SMALL) == (80_000, 0)


# -- slot kv
MAGIC = 0x67677371
PROMPT = as_tokens(range(100))


def slot_file(tokens: array.array[int], *, wrapped: bool = False) -> bytes:
    words = array.array("I", [0xFFFFFFFF, 1, len(tokens)]) + tokens if wrapped else tokens
    return struct.pack("<III", MAGIC, 2, len(words)) + words.tobytes() + bytes(40)


class SlotServer:
    """A slot of llama-server, which writes and reads its file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.holds = PROMPT
        self.fails = False
        self.restored: list[str] = []

    async def call(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if self.fails:
            return 500, b"broken"
        file = self.folder / msgspec.json.decode(body)["filename"]
        if path.endswith("save"):
            data = slot_file(self.holds)
            file.write_bytes(data)
            return 200, msgspec.json.encode({"n_saved": len(self.holds), "n_written": len(data)})
        self.restored.append(path)
        return 200, msgspec.json.encode({"n_restored": len(read_tokens(file, len(PROMPT)) or ())})


@pytest.fixture
def server(tmp_path: Path) -> SlotServer:
    return SlotServer(tmp_path)


@pytest.fixture
def slot_kv(server: SlotServer, tmp_path: Path) -> SlotKv:
    tiers = make_tiers(tmp_path, 1 << 20, cost=AlwaysRestores())
    usage = SlotUsage(SlotTable(1), tiers.catalog, 8)
    return SlotKv(cast(HttpClient, server), tiers, usage, worth_tokens=16)


def slot_of(name: str, tokens: array.array[int]) -> Slot:
    slot = Slot(0)
    slot.key, slot.tokens, slot.busy = key(name), tokens, True
    return slot


async def test_a_slot_that_went_on_with_something_else_is_not_kept(slot_kv: SlotKv, server: SlotServer) -> None:
    server.holds = as_tokens([*range(50), 1, 2, 3])
    await slot_kv.save(slot_of("a", PROMPT))
    assert slot_kv.counters["saves_of_others"] == 1 and slot_kv.tiers.host.bytes == 0
    assert slot_kv.tiers.catalog.place(key("a")).tier == "none" and list(server.folder.iterdir()) == []


async def test_trouble_with_the_server_leaves_no_room_taken_and_a_slot_as_unknown(
    slot_kv: SlotKv, server: SlotServer
) -> None:
    slot = slot_of("a", PROMPT)
    server.fails = True
    await slot_kv.save(slot)
    assert slot_kv.counters["saves_failed"] == 1 and slot_kv.tiers.host.bytes == 0 and slot.saved_tokens == 0
    server.fails = False
    await slot_kv.save(slot)
    server.fails = True
    empty = slot_of("a", array.array("I"))
    assert await slot_kv.bring_up(empty, key("a"), PROMPT + as_tokens([7]), 0) == 0
    assert slot_kv.counters["restores_failed"] == 1 and not empty.tokens


def test_a_slots_file_begins_with_its_tokens_or_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.slot"
    for wrapped in (False, True):
        path.write_bytes(slot_file(PROMPT, wrapped=wrapped))
        assert read_tokens(path, 100) == PROMPT
        assert read_tokens(path, 99) is None
    for damaged in (b"", b"short", struct.pack("<III", 1, 2, 3) + bytes(100), slot_file(PROMPT)[:30]):
        path.write_bytes(damaged)
        assert read_tokens(path, 100) is None
    assert read_tokens(tmp_path / "missing", 100) is None


async def test_what_another_session_of_the_scope_holds_is_brought_up_as_far_as_it_is_the_same(
    slot_kv: SlotKv, server: SlotServer
) -> None:
    holder = slot_of("a", PROMPT)
    holder.scope = b"mine"
    await slot_kv.save(holder)
    prompt = PROMPT[:80] + as_tokens([7, 7, 7])
    for name, scope, restored in (("b", b"", 0), ("c", b"another's", 0), ("d", b"mine", 80)):
        slot = slot_of(name, array.array("I"))
        slot.scope = scope
        assert await slot_kv.bring_up(slot, key(name), prompt, 0) == restored
        assert slot.tokens == PROMPT[:restored], "the rest of what the other session holds is not this one's"
        assert not slot_kv.is_worth_saving(slot)
    assert slot_kv.counters["restores_of_other_sessions"] == len(server.restored) == 1


async def test_the_slot_at_rest_of_another_session_of_the_scope_is_saved_for_a_run_that_begins_like_it(
    slot_kv: SlotKv,
) -> None:
    table = SlotTable(3)
    one, other = (table.acquire(key(name), PROMPT) for name in ("a", "x"))
    assert one is not None and other is not None
    for slot, scope in ((one, b"mine"), (other, b"another's")):
        table.assign(slot, key(f"of {scope!r}"), scope)
        slot.tokens = PROMPT
        table.release(slot)
    new = table.acquire(key("b"), PROMPT)
    assert new is not None
    for scope, length, spills in ((b"", 100, 0), (b"mine", 10, 0), (b"mine", 100, 1), (b"mine", 100, 1)):
        table.assign(new, key("b"), scope)
        await slot_kv.save_near(table, new, PROMPT[:length], 0)
        assert slot_kv.counters["spills"] == spills
    assert other.saved_tokens == 0 and one.saved_tokens == len(PROMPT)


def test_a_slots_file_with_images_has_their_names_where_they_are_expected(tmp_path: Path) -> None:
    path = tmp_path / "x.slot"
    image = image_ids("ab" * 32, 12)
    ours, begin = [*range(5), *image, 7, 8], 5
    held = [*range(5), 99, *[0xFFFF_FFFF] * 11, 7, 8]  # with a token before the image that is llama-server's own
    notes = [1, begin, *range(40)]
    words = [0xFFFF_FFFF, 1, len(held), *held, *notes]
    path.write_bytes(struct.pack(f"<III{len(words)}I", MAGIC, 4, len(words), *words))
    assert read_tokens(path, len(held), as_tokens(ours)) == as_tokens(ours)
    assert read_tokens(path, len(held)) == as_tokens(held)
    other = [*range(5), 99, *[0xFFFF_FFFF] * 11, 7, 9]
    assert read_tokens(path, len(held), as_tokens(other)) != as_tokens(other)
    text = as_tokens([*range(5), 99, *range(13)])
    assert read_tokens(path, len(held), text) != text, "an image is no text"


@pytest.mark.parametrize("image", [0, 1])
def test_a_slots_file_with_text_in_an_images_place_has_no_image(tmp_path: Path, image: int) -> None:
    path = tmp_path / "x.slot"
    ours = [*range(5), *image_ids("ab" * 32, 12), *image_ids("cd" * 32, 14), 7]
    images = [[0xFFFF_FFFF] * 12, [0xFFFF_FFFF] * 14]
    for replaced in (False, True):
        held = [*range(5), *images[0], *images[1], 7]
        words = [0xFFFF_FFFF, 1, len(held), *held]
        path.write_bytes(struct.pack(f"<III{len(words)}I", MAGIC, 4, len(words), *words))
        assert (read_tokens(path, len(held), as_tokens(ours)) == as_tokens(ours)) != replaced
        images[image] = [9] * len(images[image])
