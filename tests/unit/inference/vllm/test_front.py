"""The front half of the vLLM engine, without vLLM: the gate, the reports, and what becomes of a run's blocks."""

from __future__ import annotations

import array
import asyncio
import hashlib
import math
import random
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from inference.kv.cold_tier import ColdSnapshot, FetchProgress
from inference.kv.disk import DiskTier
from inference.kv.envelope import KvIdentity, SnapshotManifest
from inference.kv.tiers import HostSnapshot, Tiers
from inference.vllm import offload as spill_module
from inference.vllm.concurrency_gate import ConcurrencyGate
from inference.vllm.offload import KvOffload, OffloadPlan
from inference.vllm.options import VllmOptions
from inference.vllm.worker_events import (
    MENTIONS_NAME,
    BlocksLoaded,
    BlocksSaved,
    Report,
    WorkerEventListener,
    WorkerEventSender,
)
from persistence.keys import MemoryKeyStore
from sessions.model.errors import BadInput, Overloaded, Unavailable
from sessions.model.types import OPENINGS, SessionId, SessionKey, TenantId
from tests.support.engines import until

BLOCK_TOKENS = 4
BLOCK_BYTES = 64
IDENTITY = KvIdentity("vllm/test", "model", "f32", "layout")


def key(name: str, tenant: str = "t") -> SessionKey:
    return SessionKey(TenantId(tenant), SessionId(name))


# -- the gate ------------------------------------------------------------------------------------------------


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


# -- reports ---------------------------------------------------------------------------------------------------


async def test_reports_arrive_and_nonsense_is_passed_over(tmp_path: Path) -> None:
    heard: list[Report] = []
    reports: list[Report] = []
    arrived = asyncio.Event()

    def hear(report: Report) -> None:
        heard.append(report)
        if reports == heard:
            arrived.set()

    listener = WorkerEventListener(tmp_path, hear)
    sender = WorkerEventSender(tmp_path)
    for number in range(1000):  # nobody reads yet: what has no room is not waited for
        sender.mention(BlocksSaved("r", 0, number, False))
    listener._read(listener._sockets[tmp_path / MENTIONS_NAME])
    assert [report.num_blocks for report in heard if isinstance(report, BlocksSaved)] == list(range(len(heard))) != []
    heard.clear()
    reports += [BlocksSaved("r", 0, 3, True), BlocksLoaded("r", 0, 10, 0.5, 0, "bad_chunk")]
    sender.send(reports[0])
    sender._socket.sendto(b"\xc1", str(tmp_path / "front.sock"))
    sender.send(reports[1])
    async with asyncio.timeout(10):
        await arrived.wait()
    assert heard == reports
    listener.close()
    sender.send(reports[0])  # nobody listens: nothing happens
    sender.close()


def test_what_vllm_is_told_twice_is_refused() -> None:
    with pytest.raises(BadInput) as refused:
        VllmOptions(model_path=Path("m"), engine_args={"max_num_seqs": 3})
    assert "max_num_seqs" in refused.value.public_message
    for name, value in (("slots", 0), ("context_window", 10), ("disk_bytes_max", -1)):
        with pytest.raises(BadInput) as refused:
            VllmOptions(model_path=Path("m"), **cast(Any, {name: value}))
        assert refused.value.param == name


# -- a run's blocks --------------------------------------------------------------------------------------------


def block_of(tokens: array.array[int], index: int, size: int = BLOCK_BYTES) -> bytes:
    """What a device would hold: a function of all tokens up to the block's end."""
    seen = tokens[: (index + 1) * BLOCK_TOKENS].tobytes()
    return (hashlib.blake2b(seen).digest() * (size // 64 + 1))[:size]


class Device:
    """Writes the blocks of a plan as the connector does, and checks what it would load."""

    def __init__(self, spill: KvOffload) -> None:
        self.spill = spill

    def load(self, plan: OffloadPlan, prompt: array.array[int]) -> None:
        if plan.source is not None:
            data, size = plan.source.path.read_bytes(), self.spill.block_bytes
            for index in range(plan.base_blocks):
                assert data[index * size : (index + 1) * size] == block_of(prompt, index, size)

    def save(self, plan: OffloadPlan, tokens: array.array[int], *, failed: bool = False, close: bool = True) -> None:
        if plan.path is None:
            return
        full, size = min(len(tokens) // BLOCK_TOKENS, plan.limit_blocks), self.spill.block_bytes
        plan.path.touch()
        with plan.path.open("r+b") as file:
            for index in range(plan.base_blocks, full):
                file.seek(index * size)
                file.write(block_of(tokens, index, size))
        self.spill.heard(BlocksSaved(plan.name, 0, max(full, plan.base_blocks), close, failed))


@pytest.fixture
async def spill(tmp_path: Path) -> AsyncIterator[KvOffload]:
    tiers = Tiers(IDENTITY, tmp_path, 40 * BLOCK_BYTES, None)
    await tiers.open()
    made = KvOffload(tiers, block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, ranks=1, answer_tokens=16, saves=True)
    yield made
    await made.stop()
    await tiers.close(0)
    assert tiers.host_bytes == 0 and not list(tmp_path.glob("*.slot"))


async def test_what_was_written_is_found_again_and_grows_with_the_session(spill: KvOffload) -> None:
    device = Device(spill)
    tokens = array.array("I", range(21))
    plan = await spill.plan("r1", key("a"), tokens, 0, 8)
    assert plan.source is None
    device.save(plan, tokens)
    spill.settle(plan, tokens)
    await spill.settled(key("a"))
    longer = array.array("I", range(30))
    plan = await spill.plan("r2", key("a"), longer, 0, 8)
    assert plan.base_blocks == 5 and plan.source is not None
    device.load(plan, longer)
    told = spill.transfer(plan, "tag", [], [])
    assert told["source"]["num_blocks"] == told["first_block"] == 5
    device.save(plan, longer)
    spill.settle(plan, longer)
    await spill.settled()
    assert spill.tiers.place(key("a")).tokens == 28
    plan = await spill.plan("r3", key("a", "other"), longer, 0, 8)
    assert plan.source is None
    await spill.abandon(plan)


async def kept(spill: KvOffload, who: SessionKey, tokens: array.array[int]) -> None:
    """The session's blocks of a run over `tokens` are in the tiers."""
    plan = await spill.plan("first", who, tokens, 0, 8)
    Device(spill).save(plan, tokens)
    spill.settle(plan, tokens)
    await spill.settled()


async def test_a_restore_that_is_slower_than_computing_is_not_made(spill: KvOffload) -> None:
    tokens = array.array("I", range(21))
    await kept(spill, key("a"), tokens)
    spill.tiers.cost.prefilled(0, 100, 0.001)
    spill.tiers.cost.moved("device", 5 * BLOCK_BYTES, 1.0, time.monotonic())
    plan = await spill.plan("r", key("a"), tokens, 0, 8)
    assert plan.source is None and plan.base_blocks == 0 and spill.counters["restores_declined"] == 1
    Device(spill).save(plan, tokens)  # all of it is written again, as nothing is there to go on from
    spill.settle(plan, tokens)
    await spill.settled()
    assert spill.tiers.place(key("a")).tokens == 20


async def test_a_run_tells_the_pace_that_restores_are_judged_by(spill: KvOffload) -> None:
    tokens = array.array("I", range(3000))
    cost = spill.tiers.cost
    plan = await spill.plan("r", key("a"), tokens, 0, 8)
    await spill.on_output(plan, 2990, 3000)
    assert math.isinf(cost.prefill_s(0, 100))  # ten tokens say nothing
    await spill.abandon(plan)
    plan = await spill.plan("r", key("a"), tokens, 0, 8)
    assert plan.planned_s is not None
    plan.planned_s -= 10.0
    spill.heard(BlocksLoaded("r", 0, 1_000_000, 4.0, 0))
    await spill.on_output(plan, 1000, 3000)
    assert 5.9 < cost.prefill_s(1000, 3000) < 6.5  # without the load
    assert cost.move_s("device", 1_000_000, time.monotonic()) == pytest.approx(4.0, rel=0.1)
    await spill.on_output(plan, 1000, 3000)
    assert plan.planned_s is None
    await spill.abandon(plan)


async def test_what_is_on_the_device_already_is_not_read_from_disk(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    tokens = array.array("I", range(400))

    async def opened() -> KvOffload:
        disk = DiskTier(tmp_path / "kv", 1 << 30, IDENTITY)
        tiers = Tiers(IDENTITY, tmp_path / "memory", 1 << 20, disk)
        await tiers.open()
        return KvOffload(
            tiers, block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, ranks=1, answer_tokens=16, saves=True
        )

    spill = await opened()
    await kept(spill, key("a"), tokens)
    await spill.stop()
    await spill.tiers.close(5.0)
    spill = await opened()
    spill.tiers.cost.prefilled(0, 400, 4.0)
    assert spill.tiers.place(key("a")).tier == "disk"
    plan = await spill.plan("resident", key("a"), tokens, 0, 8, resident=400)
    assert plan.source is None and spill.tiers.place(key("a")).tier == "disk"
    await spill.abandon(plan)
    plan = await spill.plan("lost", key("a"), tokens, 0, 8)
    assert plan.source is not None and plan.base_blocks == 99
    await spill.abandon(plan)
    await spill.stop()
    await spill.tiers.close(0.0)


def holds(spill: KvOffload, who: SessionKey, tokens: array.array[int]) -> bool:
    """One snapshot of the session in host memory covers all whole blocks of `tokens`, with the right bytes."""
    (snapshot,) = spill.tiers.host.of(who)
    blocks, size = len(tokens) // BLOCK_TOKENS, spill.block_bytes
    assert snapshot.tokens == tokens[: blocks * BLOCK_TOKENS]
    return snapshot.path.read_bytes() == b"".join(block_of(tokens, index, size) for index in range(blocks))


@pytest.mark.parametrize("before", [0, 21])
async def test_what_a_run_has_written_is_a_snapshot_before_it_ends(spill: KvOffload, before: int) -> None:
    device, tokens = Device(spill), array.array("I", range(50))
    if before:
        await kept(spill, key("a"), tokens[:before])
    plan = await spill.plan("r1", key("a"), tokens[:30], 0, 16)
    await spill.cut(plan, tokens[:30])
    assert len(spill.tiers.host.of(key("a"))) == bool(before), "nothing of it was written yet"
    for said in (34, 34, 41):
        device.save(plan, tokens[:said], close=False)
        await spill.cut(plan, tokens[: said - 2])  # what was said is told later than what was written, or sooner
        assert holds(spill, key("a"), tokens[: said - 2])
        await spill.cut(plan, tokens[: said + 4])
        assert holds(spill, key("a"), tokens[:said])
    device.save(plan, tokens[:45])
    spill.settle(plan, tokens[:45])
    await spill.settled()
    await spill.tiers._settle()
    assert holds(spill, key("a"), tokens[:45]) and spill.tiers.host_bytes == 11 * BLOCK_BYTES


@pytest.mark.parametrize("meanwhile", ["deleted", "ended", "cancelled"])
async def test_what_happens_while_a_run_is_copied(
    spill: KvOffload, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow(*what: Any) -> None:
        concatenate(*what)
        begun.set()
        goes_on.wait(20)

    concatenate = spill_module._concatenate
    monkeypatch.setattr(spill_module, "_concatenate", slow)
    tokens, device = array.array("I", range(40)), Device(spill)
    plan = await spill.plan("r1", key("a"), tokens[:30], 0, 16)
    device.save(plan, tokens[:30], close=False)
    cutting = asyncio.create_task(spill.cut(plan, tokens[:30]))
    await asyncio.to_thread(begun.wait, 20)
    if meanwhile == "cancelled":
        cutting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cutting
    device.save(plan, tokens[:34])
    spill.settle(plan, tokens[:34])
    await until(lambda: bool(spill.tiers.host.of(key("a"))))
    if meanwhile == "deleted":
        spill.forget(key("a"))
        await spill.tiers.erase(key("a"))
    goes_on.set()
    await spill.settled()
    await spill.tiers._settle()
    assert cutting.done()
    if meanwhile == "deleted":
        assert not spill.tiers.host.of(key("a")) and spill.tiers.host_bytes == 0
    else:
        assert holds(spill, key("a"), tokens[:34]) and spill.tiers.host_bytes == 8 * BLOCK_BYTES


@pytest.mark.parametrize("fate", ["failed", "forgotten", "base", "gone"])
async def test_a_run_that_went_wrong_is_no_snapshot_before_it_ends_either(spill: KvOffload, fate: str) -> None:
    tokens = array.array("I", range(40))
    await kept(spill, key("a"), tokens[:21])
    plan = await spill.plan("r1", key("a"), tokens[:30], 0, 16)
    Device(spill).save(plan, tokens, failed=fate == "failed", close=False)
    match fate:
        case "forgotten":
            spill.forget(key("a"))
        case "base":
            await damaged(spill, key("a"), tokens[:21])
        case "gone":
            assert plan.path is not None
            plan.path.unlink()
    await spill.cut(plan, tokens)
    assert spill.tiers.find(key("a"), tokens)[1] == (0 if fate == "base" else 20)
    await spill.abandon(plan)


@pytest.mark.parametrize("fate", ["failed", "forgotten"])
async def test_what_failed_or_was_forgotten_is_not_kept(spill: KvOffload, fate: str) -> None:
    tokens = array.array("I", range(21))
    plan = await spill.plan("r1", key("a"), tokens, 0, 8)
    Device(spill).save(plan, tokens, failed=fate == "failed")
    if fate == "forgotten":
        spill.forget(key("a"))
    spill.settle(plan, tokens)
    await spill.settled()
    assert spill.tiers.place(key("a")).tokens == 0


async def damaged(spill: KvOffload, who: SessionKey, tokens: array.array[int]) -> None:
    """A bit of the session's snapshot in host memory flips, after it was tagged."""
    found, _ = spill.tiers.find(who, tokens)
    assert isinstance(found, HostSnapshot) and found.tagging is not None
    await found.tagging
    data = bytearray(found.path.read_bytes())
    data[3] ^= 1
    found.path.write_bytes(data)


@pytest.mark.parametrize("shared_prefix", [0, 8])
async def test_damage_that_no_run_has_loaded_is_not_made_good_by_the_next_save(
    spill: KvOffload, shared_prefix: int
) -> None:
    device = Device(spill)
    tokens = array.array("I", range(21))
    await kept(spill, key("a"), tokens)
    await damaged(spill, key("a"), tokens)
    longer = array.array("I", range(30))
    plan = await spill.plan("r2", key("a"), longer, shared_prefix, 8)  # the device still has it all: nothing is loaded
    device.save(plan, longer)
    spill.settle(plan, longer)
    await spill.settled()
    for who in (key("a"), key("b")):
        plan = await spill.plan("r3", who, longer, shared_prefix, 8)
        device.load(plan, longer)
        assert plan.source is None
        await spill.abandon(plan)
    assert spill.tiers.counters["refused_bad_chunk"] == spill.counters["saves_refused_bad_chunk"] == 1


async def test_snapshots_of_many_chunks_grow_by_blocks_that_end_within_one(tmp_path: Path) -> None:
    tiers = Tiers(IDENTITY, tmp_path, 1 << 26, None)
    await tiers.open()
    spill = KvOffload(tiers, block_tokens=BLOCK_TOKENS, block_bytes=300_000, ranks=1, answer_tokens=16, saves=True)
    device = Device(spill)
    for number, num_tokens in enumerate((21, 30, 47, 22)):
        tokens = array.array("I", range(num_tokens)) + array.array("I", [number] * 8)
        plan = await spill.plan(str(number), key("a"), tokens, 0, 8)
        assert plan.base_blocks == (0, 5, 7, 5)[number]
        device.load(plan, tokens)
        device.save(plan, tokens)
        spill.settle(plan, tokens)
        await spill.settled()
        plan = await spill.plan("again", key("a"), tokens, 0, 8)
        assert plan.base_blocks == (len(tokens) - 1) // BLOCK_TOKENS
        device.load(plan, tokens)
        await spill.abandon(plan)
    assert spill.counters["saves"] == 4
    await spill.stop()
    await tiers.close(0)


class HeldDisk(DiskTier):
    """A disk whose reads wait until they are let go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 1 << 30, IDENTITY)
        self.go, self.asked = asyncio.Event(), asyncio.Event()

    async def fetch(
        self, snapshot: ColdSnapshot, payload: Path, progress: FetchProgress | None = None
    ) -> SnapshotManifest:
        self.asked.set()
        await self.go.wait()
        return await super().fetch(snapshot, payload, progress)


@pytest.mark.parametrize("fate", ["forgotten", "stopped"])
async def test_what_is_forgotten_while_its_run_is_planned_is_not_stored_again(tmp_path: Path, fate: str) -> None:
    (tmp_path / "memory").mkdir()
    tokens = array.array("I", range(400))

    async def opened() -> tuple[KvOffload, HeldDisk]:
        disk = HeldDisk(tmp_path / "kv")
        tiers = Tiers(IDENTITY, tmp_path / "memory", 1 << 20, disk)
        await tiers.open()
        made = KvOffload(
            tiers, block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, ranks=1, answer_tokens=16, saves=True
        )
        return made, disk

    spill, _ = await opened()
    await kept(spill, key("a"), tokens)
    await spill.stop()
    await spill.tiers.close(5.0)
    spill, disk = await opened()
    planning = asyncio.create_task(spill.plan("typing", key("a"), tokens, 0, 8))
    await disk.asked.wait()
    if fate == "forgotten":
        spill.forget(key("a"))
        await spill.tiers.erase(key("a"))
    else:
        await spill.stop()
    disk.go.set()
    plan = await planning
    Device(spill).save(plan, tokens)
    spill.settle(plan, tokens)
    await spill.settled()
    if fate == "forgotten":
        assert spill.tiers.place(key("a")).tier == "none" and list((tmp_path / "kv").iterdir()) == []
    assert plan.path is None and plan.source is None and "source" not in spill.transfer(plan, "tag", [], [])
    assert not any(snapshot.users for snapshot in spill.tiers.host)
    await spill.stop()
    await spill.tiers.close(0.0)
    assert spill.tiers.host_bytes == 0 and not list((tmp_path / "memory").iterdir())


async def test_an_opening_is_kept_for_a_tenant_once_a_second_session_begins_with_it(spill: KvOffload) -> None:
    """What one session alone begins with may name a person: it goes with that session."""
    opening = array.array("I", range(500, 512))
    prompts = {name: opening + array.array("I", [number] * 8) for number, name in enumerate("abcd")}
    for who in (key("a"), key("a"), key("b", "u")):
        plan = await spill.plan("r", who, prompts[who.session], len(opening), 8)
        Device(spill).save(plan, prompts[who.session])
        spill.settle(plan, prompts[who.session])
        await spill.settled()
        assert not spill.tiers.host.of(key(OPENINGS, who.tenant))
    for name, base in (("b", 0), ("c", 3)):
        plan = await spill.plan("r", key(name), prompts[name], len(opening), 8)
        assert plan.base_blocks == base
        Device(spill).load(plan, prompts[name])
        Device(spill).save(plan, prompts[name])
        spill.settle(plan, prompts[name])
        await spill.settled()
    assert [list(kept.tokens) for kept in spill.tiers.host.of(key(OPENINGS))] == [list(opening)]
    other = opening[:8] + array.array("I", range(4))  # it begins alike, and is another
    plan = await spill.plan("r", key("d"), other, len(other), 8)
    assert plan.source is None
    await spill.abandon(plan)
    await spill.tiers.erase(key(OPENINGS))
    plan = await spill.plan("r", key("d"), prompts["d"], len(opening), 8)
    assert plan.source is None
    await spill.abandon(plan)


async def test_openings_are_encrypted_under_one_key_of_their_tenant_and_unreadable_without_it(tmp_path: Path) -> None:
    keys, folder = MemoryKeyStore(), tmp_path / "kv"
    (tmp_path / "memory").mkdir()
    openings = [array.array("I", range(start, start + 12)) for start in (500, 600)]

    async def opened() -> KvOffload:
        tiers = Tiers(IDENTITY, tmp_path / "memory", 1 << 20, DiskTier(folder, 1 << 30, IDENTITY, keys))
        await tiers.open()
        return KvOffload(
            tiers, block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_BYTES, ranks=1, answer_tokens=16, saves=True
        )

    spill = await opened()
    for number, opening in enumerate(openings * 2):
        prompt = opening + array.array("I", [number] * 8)
        plan = await spill.plan("r", key(f"s{number}"), prompt, len(opening), 8)
        Device(spill).save(plan, prompt)
        spill.settle(plan, prompt)
        await spill.settled()
    await spill.stop()
    await spill.tiers.close(5.0)
    assert len(list(folder.iterdir())) == 6
    assert {each.session for each in keys._keys} == {"s0", "s1", "s2", "s3", OPENINGS}
    await keys.destroy(key(OPENINGS))
    spill = await opened()
    assert len(list(folder.iterdir())) == 4 and not spill.tiers.place(key(OPENINGS)).tokens
    await spill.stop()
    await spill.tiers.close(0.0)


async def test_branches_openings_deletions_and_a_full_host_never_mix_blocks(spill: KvOffload) -> None:
    """Random runs of sessions that share beginnings; every block that a run would load is the one it needs."""
    chance = random.Random(1000)
    device = Device(spill)
    opening = array.array("I", range(500, 510))
    texts = {name: opening + array.array("I", [int(name) + 1] * 8) for name in "0123456"}
    sources = 0
    for number in range(1000):
        name = chance.choice("0123456")
        who = key(name, chance.choice(("t", "u")))
        prompt = texts[name][: chance.randrange(3, 18)] + array.array("I", [chance.randrange(3)] * chance.randrange(9))
        plan = await spill.plan(str(number), who, prompt, min(10, len(prompt)), 8)
        sources += plan.source is not None
        device.load(plan, prompt)
        answer = array.array("I", [chance.randrange(3) for _ in range(chance.randrange(8))])
        known = prompt + answer
        if plan.path is not None and chance.randrange(3) == 0:
            device.save(plan, known[: chance.randrange(len(prompt), len(known) + 1)], close=False)
            await spill.cut(plan, known)
        match chance.randrange(8):
            case 0:
                await spill.abandon(plan)
                continue
            case 1:
                spill.forget(who)
                await spill.tiers.erase(who)
            case 2:
                device.save(plan, known, failed=True)
        if plan.open_ranks:
            device.save(plan, known)
        spill.settle(plan, known)
        if chance.randrange(3):
            await spill.settled()
    assert sources > 100
