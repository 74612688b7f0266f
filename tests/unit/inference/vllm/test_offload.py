"""What becomes of a vLLM run's blocks, without vLLM: restored, written, joined, kept or dropped."""

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
from typing import Any

import pytest

from inference.kv.block_checksums import add_checksums
from inference.kv.disk import DiskTier
from inference.kv.host_tier import HostSnapshot
from inference.vllm import offload as offload_module
from inference.vllm.offload import KvOffload, OffloadPlan
from inference.vllm.worker_events import BlocksLoaded, BlocksSaved
from persistence.keys import MemoryKeyStore
from sessions.model.types import OPENINGS, SessionId, SessionKey, TenantId
from sessions.turn.images import image_ids
from testbed.engine_client import until
from tests.support.engines.kv import IDENTITY, HeldDisk, make_tiers

BLOCK_TOKENS = 4
BLOCK_BYTES = 64


def key(name: str, tenant: str = "t") -> SessionKey:
    return SessionKey(TenantId(tenant), SessionId(name))


def block_of(tokens: array.array[int], index: int, size: int = BLOCK_BYTES) -> bytes:
    """What a device would hold: a function of all tokens up to the block's end."""
    seen = tokens[: (index + 1) * BLOCK_TOKENS].tobytes()
    return (hashlib.blake2b(seen).digest() * (size // 64 + 1))[:size]


class Device:
    """Writes the blocks of a plan as the connector does, and checks what it would load."""

    def __init__(self, offload: KvOffload) -> None:
        self.offload = offload

    def load(self, plan: OffloadPlan, prompt: array.array[int]) -> None:
        if plan.source is not None:
            data, size = plan.source.path.read_bytes(), self.offload.block_bytes
            for index in range(plan.base_blocks):
                assert data[index * size : (index + 1) * size] == block_of(prompt, index, size)

    def write(self, plan: OffloadPlan, tokens: array.array[int], *, torn: int = 0) -> int:
        """And nobody hears of it. The last `torn` blocks have no checksum. Returns how many there are."""
        assert plan.path is not None
        full, size = min(len(tokens) // BLOCK_TOKENS, plan.limit_blocks), self.offload.block_bytes
        plan.path.touch()
        with plan.path.open("r+b") as file:
            for index in range(plan.base_blocks, full):
                file.seek(index * size)
                file.write(block_of(tokens, index, size))
        intact = [memoryview(block_of(tokens, index, size)) for index in range(plan.base_blocks, full - torn)]
        add_checksums(plan.path, plan.base_blocks, intact, 0, 1)
        return full

    def save(self, plan: OffloadPlan, tokens: array.array[int], *, failed: bool = False, close: bool = True) -> None:
        if plan.path is None:
            return
        full = self.write(plan, tokens)
        self.offload.on_report(BlocksSaved(plan.name, 0, max(full, plan.base_blocks), close, failed))

    async def end(self, plan: OffloadPlan, tokens: array.array[int]) -> None:
        """Saves a run whole and settles it."""
        self.save(plan, tokens)
        self.offload.settle(plan, tokens)
        await self.offload.settled()


async def opened(folder: Path, host: int = 1 << 20, disk: DiskTier | None = None, **more: Any) -> KvOffload:
    tiers = make_tiers(folder, host, disk)
    await tiers.open()
    sizes = {"block_tokens": BLOCK_TOKENS, "block_bytes": BLOCK_BYTES, "ranks": 1, "answer_tokens": 16}
    return KvOffload(tiers, **sizes, saves=True, **more)


@pytest.fixture
async def offload(tmp_path: Path) -> AsyncIterator[KvOffload]:
    made = await opened(tmp_path, 40 * BLOCK_BYTES)
    yield made
    await made.stop()
    await made.tiers.close(0)
    assert made.tiers.host.bytes == 0 and not list(tmp_path.glob("*.slot")) and not list(tmp_path.glob("*.sums"))


async def test_what_was_written_is_found_again_and_grows_with_the_session(offload: KvOffload) -> None:
    device = Device(offload)
    tokens = array.array("I", range(21))
    plan = await offload.plan("r1", key("a"), tokens, 0, 8)
    assert plan.source is None
    await device.end(plan, tokens)
    longer = array.array("I", range(30))
    plan = await offload.plan("r2", key("a"), longer, 0, 8)
    assert plan.base_blocks == 5 and plan.source is not None
    device.load(plan, longer)
    told = offload.transfer(plan, "tag", [], [])
    assert told["source"]["num_blocks"] == told["first_block"] == 5
    await device.end(plan, longer)
    assert offload.tiers.catalog.place(key("a")).tokens == 28
    plan = await offload.plan("r3", key("a", "other"), longer, 0, 8)
    assert plan.source is None
    await offload.abandon(plan)


async def test_no_kv_of_an_image_is_restored_by_the_beginning_of_its_name(offload: KvOffload) -> None:
    one, like_it, shorter = "0b" * 32, "0b" * 9 + "0c" * 23, "0c" * 32
    before = array.array("I", range(6))
    known = before + array.array("I", image_ids(one, 20))
    await kept(offload, key("a"), known)
    bases = {one: 6, like_it: 1, shorter: 1}  # in blocks of four: where its name is whole, else in front of the image
    for sha256, blocks in bases.items():
        prompt = before + array.array("I", [*image_ids(sha256, 20), 7])
        plan = await offload.plan("r", key("a"), prompt, 0, 8)
        assert plan.base_blocks == blocks
        await offload.abandon(plan)
    plan = await offload.plan("r", key("a"), array.array("I"), 0, 8)  # of a prompt that begins with a short image
    assert plan.base_blocks == 0 and plan.source is None
    await offload.abandon(plan)


async def kept(offload: KvOffload, who: SessionKey, tokens: array.array[int]) -> None:
    """The session's blocks of a run over `tokens` are in the tiers."""
    plan = await offload.plan("first", who, tokens, 0, 8)
    await Device(offload).end(plan, tokens)


async def test_a_restore_that_is_slower_than_computing_is_not_made(offload: KvOffload) -> None:
    tokens = array.array("I", range(21))
    await kept(offload, key("a"), tokens)
    offload.tiers.cost.prefilled(0, 100, 0.001)
    offload.tiers.cost.moved("device", 5 * BLOCK_BYTES, 1.0, time.monotonic())
    plan = await offload.plan("r", key("a"), tokens, 0, 8)
    assert plan.source is None and plan.base_blocks == 0 and offload.counters["restores_declined"] == 1
    await Device(offload).end(plan, tokens)  # all of it is written again, as nothing is there to go on from
    assert offload.tiers.catalog.place(key("a")).tokens == 20


async def test_a_run_tells_the_pace_that_restores_are_judged_by(offload: KvOffload) -> None:
    tokens = array.array("I", range(3000))
    cost = offload.tiers.cost
    plan = await offload.plan("r", key("a"), tokens, 0, 8)
    await offload.on_output(plan, 2990, 3000)
    assert math.isinf(cost.prefill_s(0, 100))  # ten tokens say nothing
    await offload.abandon(plan)
    plan = await offload.plan("r", key("a"), tokens, 0, 8)
    assert plan.planned_s is not None
    plan.planned_s -= 10.0
    offload.on_report(BlocksLoaded("r", 0, 1_000_000, 4.0, 0))
    await offload.on_output(plan, 1000, 3000)
    assert 5.9 < cost.prefill_s(1000, 3000) < 6.5  # without the load
    assert cost.move_s("device", 1_000_000, time.monotonic()) == pytest.approx(4.0, rel=0.1)
    await offload.on_output(plan, 1000, 3000)
    assert plan.planned_s is None
    await offload.abandon(plan)


def holds(offload: KvOffload, who: SessionKey, tokens: array.array[int]) -> bool:
    """One snapshot of the session in host memory covers all whole blocks of `tokens`, with the right bytes."""
    (snapshot,) = offload.tiers.host.of(who)
    blocks, size = len(tokens) // BLOCK_TOKENS, offload.block_bytes
    assert snapshot.tokens == tokens[: blocks * BLOCK_TOKENS]
    return snapshot.path.read_bytes() == b"".join(block_of(tokens, index, size) for index in range(blocks))


@pytest.mark.parametrize("before", [0, 21])
@pytest.mark.parametrize("much_more", [True, False])
async def test_what_a_run_has_written_is_a_snapshot_before_it_ends(
    offload: KvOffload, before: int, much_more: bool
) -> None:
    device, tokens = Device(offload), array.array("I", range(50))
    if before:
        await kept(offload, key("a"), tokens[:before])
    plan = await offload.plan("r1", key("a"), tokens[:30], 0, 16)
    await offload.cut(plan, tokens[:30])
    assert len(offload.tiers.host.of(key("a"))) == bool(before), "nothing of it was written yet"
    for said in (34, 34, 41):
        device.save(plan, tokens[:said], close=False)
        await offload.cut(plan, tokens[: said - 2])  # what was said is told later than what was written, or sooner
        assert holds(offload, key("a"), tokens[: said - 2])
        await offload.cut(plan, tokens[: said + 4])
        assert holds(offload, key("a"), tokens[:said])
    end = 45 if much_more else 44
    if much_more:
        plan.num_cut = 9  # as if the last cut had been a while ago
    await device.end(plan, tokens[:end])
    await offload.tiers.host.settle()
    kept_blocks = 11 if much_more else 10
    assert holds(offload, key("a"), tokens[: kept_blocks * BLOCK_TOKENS])
    assert offload.tiers.host.bytes == kept_blocks * BLOCK_BYTES


@pytest.mark.parametrize("meanwhile", ["deleted", "ended", "cancelled"])
async def test_what_happens_while_a_run_is_copied(
    offload: KvOffload, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow(*what: Any) -> None:
        concatenate(*what)
        begun.set()
        goes_on.wait(20)

    concatenate = offload_module._concatenate
    monkeypatch.setattr(offload_module, "_concatenate", slow)
    tokens, device = array.array("I", range(40)), Device(offload)
    plan = await offload.plan("r1", key("a"), tokens[:30], 0, 16)
    device.save(plan, tokens[:30], close=False)
    cutting = asyncio.create_task(offload.cut(plan, tokens[:30]))
    await asyncio.to_thread(begun.wait, 20)
    if meanwhile == "cancelled":
        cutting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cutting
    device.save(plan, tokens[:34])
    offload.settle(plan, tokens[:34])
    await until(lambda: bool(offload.tiers.host.of(key("a"))))
    if meanwhile == "deleted":
        offload.forget(key("a"))
        await offload.tiers.erase(key("a"))
    goes_on.set()
    await offload.settled()
    await offload.tiers.host.settle()
    assert cutting.done()
    if meanwhile == "deleted":
        assert not offload.tiers.host.of(key("a")) and offload.tiers.host.bytes == 0
    else:
        assert holds(offload, key("a"), tokens[:34]) and offload.tiers.host.bytes == 8 * BLOCK_BYTES


@pytest.mark.parametrize("fate", ["failed", "forgotten", "base", "gone"])
async def test_a_run_that_went_wrong_is_no_snapshot_before_it_ends_either(offload: KvOffload, fate: str) -> None:
    tokens = array.array("I", range(40))
    await kept(offload, key("a"), tokens[:21])
    plan = await offload.plan("r1", key("a"), tokens[:30], 0, 16)
    Device(offload).save(plan, tokens, failed=fate == "failed", close=False)
    match fate:
        case "forgotten":
            offload.forget(key("a"))
        case "base":
            await damaged(offload, key("a"), tokens[:21])
        case "gone":
            assert plan.path is not None
            plan.path.unlink()
    await offload.cut(plan, tokens)
    assert offload.tiers.catalog.find(key("a"), tokens)[1] == (0 if fate == "base" else 20)
    await offload.abandon(plan)


async def test_what_is_computed_ahead_of_a_run_is_written_where_it_is_most_of_it(offload: KvOffload) -> None:
    tokens = array.array("I", range(60))
    await kept(offload, key("a"), tokens[:21])
    for prompt, is_written in ((30, False), (48, True)):
        plan = await offload.plan("ahead", key("a"), tokens[:prompt], 0, 1, ahead=True)
        assert plan.base_blocks == 5 and (plan.path is not None) is is_written
        await offload.abandon(plan)
    plan = await offload.plan("new", key("b"), tokens[:30], 0, 1, ahead=True)
    assert plan.path is not None
    await offload.abandon(plan)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("before", [0, 21])
async def test_what_dead_workers_had_written_is_their_sessions_and_nothing_else(
    offload: KvOffload, before: int, cut: bool
) -> None:
    device, tokens = Device(offload), array.array("I", range(60))
    if before:
        await kept(offload, key("a"), tokens[:before])
    plan = await offload.plan("r1", key("a"), tokens[:30], 0, 16)
    if cut:  # its session was about to leave
        device.save(plan, tokens[:34], close=False)
        await offload.cut(plan, tokens[:34])
        assert plan.num_cut == 8
    assert device.write(plan, tokens[:43], torn=1) == 10
    for _ in range(2):  # a start that failed is tried again
        offload.lose()
        offload.settle(plan, tokens[:43])
        await offload.settled()
    assert holds(offload, key("a"), tokens[:36])
    assert offload.counters["blocks_adopted"] == 9 - before // BLOCK_TOKENS
    await offload.tiers.host.settle()
    assert offload.tiers.host.bytes == 9 * BLOCK_BYTES
    later = await offload.plan("r2", key("a"), tokens[:45], 0, 16)
    assert later.base_blocks == 9
    device.load(later, tokens)
    await offload.abandon(later)


@pytest.mark.parametrize("fate", ["answered less", "a bit", "failed", "forgotten", "base", "never written"])
async def test_what_dead_workers_left_is_held_against_its_checksums_and_what_was_answered(
    offload: KvOffload, fate: str
) -> None:
    device, tokens = Device(offload), array.array("I", range(40))
    await kept(offload, key("a"), tokens[:21])
    plan = await offload.plan("r1", key("a"), tokens[:30], 0, 16)
    known, expected = tokens[:38], 20
    if fate != "never written":
        device.write(plan, tokens)
    match fate:
        case "answered less":  # nobody was given the token that a block ends with
            known, expected = tokens[:34], 32
        case "a bit":
            assert plan.path is not None
            with plan.path.open("r+b") as file:
                file.seek(6 * BLOCK_BYTES + 1)
                file.write(b"?")
            expected = 24
        case "failed":
            offload.on_report(BlocksSaved(plan.name, 0, 9, False, True))
            expected = 36
        case "forgotten":
            offload.forget(key("a"))
            await offload.tiers.erase(key("a"))
            expected = 0
        case "base":
            await damaged(offload, key("a"), tokens[:21])
            expected = 0
    offload.lose()
    offload.settle(plan, known)
    await offload.settled()
    assert offload.tiers.catalog.find(key("a"), tokens)[1] == expected
    await offload.tiers.host.settle()
    assert offload.tiers.host.bytes == expected * BLOCK_BYTES // BLOCK_TOKENS


@pytest.mark.parametrize("before", [0, 13])
async def test_of_a_save_that_failed_the_blocks_before_the_fault_are_kept(offload: KvOffload, before: int) -> None:
    device, tokens = Device(offload), array.array("I", range(42))
    if before:
        await kept(offload, key("a"), tokens[:before])
    plan = await offload.plan("r1", key("a"), tokens[:30], 0, 16)
    device.write(plan, tokens, torn=3)  # could not be read
    offload.on_report(BlocksSaved(plan.name, 0, 10, True, failed=True))
    offload.settle(plan, tokens)
    await offload.settled()
    assert holds(offload, key("a"), tokens[:28]) and offload.counters["saves_failed"] == 1


@pytest.mark.parametrize("before", [0, 21])
@pytest.mark.parametrize("end", ["closed", "failed", "worker dies", "server stops", "deleted"])
async def test_a_file_that_is_closed_late_is_kept_as_it_is_and_completed(tmp_path: Path, before: int, end: str) -> None:
    offload = await opened(tmp_path, 80 * BLOCK_BYTES, close_wait_s=0.0)  # a step of the worker lasts longer
    device, tokens = Device(offload), array.array("I", range(60))
    if before:
        plan = await offload.plan("first", key("a"), tokens[:before], 0, 8)
        device.save(plan, tokens[:before])
        offload.settle(plan, tokens[:before])
        await offload.completed()
    plan = await offload.plan("r1", key("a"), tokens[:30], 0, 16)
    device.write(plan, tokens[:34])
    offload.settle(plan, tokens[:43])
    await offload.settled(key("a"))
    assert holds(offload, key("a"), tokens[:34]) and offload.counters["saves_late"] == 1
    later = await offload.plan("r2", key("a"), tokens[:45], 0, 1)
    assert later.base_blocks == 8, "the next turn goes on from what is there"
    device.load(later, tokens)
    await offload.abandon(later)
    match end:
        case "closed":
            device.save(plan, tokens[:43])
        case "failed":
            device.write(plan, tokens[:43], torn=1)
            offload.on_report(BlocksSaved(plan.name, 0, 10, True, failed=True))
        case "worker dies":
            device.write(plan, tokens[:43])
            offload.lose()
        case "server stops":
            device.write(plan, tokens[:43])
            await offload.stop()
            assert plan.file is None
        case "deleted":
            offload.forget(key("a"))
            await offload.tiers.erase(key("a"))
            device.save(plan, tokens[:43])
    await offload.completed()
    await offload.tiers.host.settle()
    if end == "deleted":
        assert not offload.tiers.host.of(key("a")) and offload.tiers.host.bytes == 0
    else:
        assert holds(offload, key("a"), tokens[: 36 if end == "failed" else 40])
    assert not offload.counters["saves_failed"] or end == "failed"
    await offload.stop()
    await offload.tiers.close(0)
    assert offload.tiers.host.bytes == 0 and not list(tmp_path.iterdir())


async def damaged(offload: KvOffload, who: SessionKey, tokens: array.array[int]) -> None:
    """A bit of the session's snapshot in host memory flips, after it was tagged."""
    found, _ = offload.tiers.catalog.find(who, tokens)
    assert isinstance(found, HostSnapshot) and found.tagging is not None
    await found.tagging
    data = bytearray(found.path.read_bytes())
    data[3] ^= 1
    found.path.write_bytes(data)


@pytest.mark.parametrize("shared_prefix", [0, 8])
async def test_damage_that_no_run_has_loaded_is_not_made_good_by_the_next_save(
    offload: KvOffload, shared_prefix: int
) -> None:
    device = Device(offload)
    tokens = array.array("I", range(21))
    await kept(offload, key("a"), tokens)
    await damaged(offload, key("a"), tokens)
    longer = array.array("I", range(30))
    plan = await offload.plan("r2", key("a"), longer, shared_prefix, 8)  # the device has it all: nothing is loaded
    await device.end(plan, longer)
    for who in (key("a"), key("b")):
        plan = await offload.plan("r3", who, longer, shared_prefix, 8)
        device.load(plan, longer)
        assert plan.source is None
        await offload.abandon(plan)
    assert offload.tiers.counters["refused_bad_chunk"] == offload.counters["saves_refused_bad_chunk"] == 1


@pytest.mark.parametrize("fate", ["forgotten", "stopped"])
async def test_what_is_forgotten_while_its_run_is_planned_is_not_stored_again(tmp_path: Path, fate: str) -> None:
    (tmp_path / "memory").mkdir()
    tokens = array.array("I", range(400))

    offload = await opened(tmp_path / "memory", disk=HeldDisk(tmp_path / "kv"))
    await kept(offload, key("a"), tokens)
    await offload.stop()
    await offload.tiers.close(5.0)
    disk = HeldDisk(tmp_path / "kv")
    disk.go.clear()
    offload = await opened(tmp_path / "memory", disk=disk)
    planning = asyncio.create_task(offload.plan("typing", key("a"), tokens, 0, 8))
    await disk.asked.wait()
    if fate == "forgotten":
        offload.forget(key("a"))
        await offload.tiers.erase(key("a"))
    else:
        await offload.stop()
    disk.go.set()
    plan = await planning
    await Device(offload).end(plan, tokens)
    if fate == "forgotten":
        assert offload.tiers.catalog.place(key("a")).tier == "none" and list((tmp_path / "kv").iterdir()) == []
    assert plan.path is None and plan.source is None and "source" not in offload.transfer(plan, "tag", [], [])
    assert not any(snapshot.users for snapshot in offload.tiers.host)
    await offload.stop()
    await offload.tiers.close(0.0)
    assert offload.tiers.host.bytes == 0 and not list((tmp_path / "memory").iterdir())


async def test_an_opening_is_kept_for_a_tenant_once_a_second_session_begins_with_it(offload: KvOffload) -> None:
    """What one session alone begins with may name a person: it goes with that session."""
    opening = array.array("I", range(500, 512))
    prompts = {name: opening + array.array("I", [number] * 8) for number, name in enumerate("abcd")}
    for who in (key("a"), key("a"), key("b", "u")):
        plan = await offload.plan("r", who, prompts[who.session], len(opening), 8)
        await Device(offload).end(plan, prompts[who.session])
        assert not offload.tiers.host.of(key(OPENINGS, who.tenant))
    for name, base in (("b", 0), ("c", 3)):
        plan = await offload.plan("r", key(name), prompts[name], len(opening), 8)
        assert plan.base_blocks == base
        Device(offload).load(plan, prompts[name])
        await Device(offload).end(plan, prompts[name])
    assert [list(kept.tokens) for kept in offload.tiers.host.of(key(OPENINGS))] == [list(opening)]
    other = opening[:8] + array.array("I", range(4))  # it begins alike, and is another
    plan = await offload.plan("r", key("d"), other, len(other), 8)
    assert plan.source is None
    await offload.abandon(plan)
    await offload.tiers.erase(key(OPENINGS))
    plan = await offload.plan("r", key("d"), prompts["d"], len(opening), 8)
    assert plan.source is None
    await offload.abandon(plan)


async def test_openings_are_encrypted_under_one_key_of_their_tenant_and_unreadable_without_it(tmp_path: Path) -> None:
    keys, folder = MemoryKeyStore(), tmp_path / "kv"
    (tmp_path / "memory").mkdir()
    openings = [array.array("I", range(start, start + 12)) for start in (500, 600)]
    offload = await opened(tmp_path / "memory", disk=DiskTier(folder, 1 << 30, IDENTITY, keys))
    for number, opening in enumerate(openings * 2):
        prompt = opening + array.array("I", [number] * 8)
        plan = await offload.plan("r", key(f"s{number}"), prompt, len(opening), 8)
        await Device(offload).end(plan, prompt)
    await offload.stop()
    await offload.tiers.close(5.0)
    assert len(list(folder.iterdir())) == 6
    assert {each.session for each in keys._keys} == {"s0", "s1", "s2", "s3", OPENINGS}
    await keys.destroy(key(OPENINGS))
    offload = await opened(tmp_path / "memory", disk=DiskTier(folder, 1 << 30, IDENTITY, keys))
    assert len(list(folder.iterdir())) == 4 and not offload.tiers.catalog.place(key(OPENINGS)).tokens
    await offload.stop()
    await offload.tiers.close(0.0)


async def test_branches_openings_deletions_and_a_full_host_never_mix_blocks(offload: KvOffload) -> None:
    """Random runs of sessions that share beginnings; every block that a run would load is the one it needs."""
    chance = random.Random(1000)
    device = Device(offload)
    opening = array.array("I", range(500, 510))
    texts = {name: opening + array.array("I", [int(name) + 1] * 8) for name in "0123456"}
    sources = 0
    for number in range(1000):
        name = chance.choice("0123456")
        who = key(name, chance.choice(("t", "u")))
        prompt = texts[name][: chance.randrange(3, 18)] + array.array("I", [chance.randrange(3)] * chance.randrange(9))
        plan = await offload.plan(str(number), who, prompt, min(10, len(prompt)), 8)
        sources += plan.source is not None
        device.load(plan, prompt)
        answer = array.array("I", [chance.randrange(3) for _ in range(chance.randrange(8))])
        known = prompt + answer
        if plan.path is not None and chance.randrange(3) == 0:
            device.save(plan, known[: chance.randrange(len(prompt), len(known) + 1)], close=False)
            await offload.cut(plan, known)
        match chance.randrange(8):
            case 0:
                await offload.abandon(plan)
                continue
            case 1:
                offload.forget(who)
                await offload.tiers.erase(who)
            case 2:
                device.save(plan, known, failed=True)
        if plan.open_ranks:
            device.save(plan, known)
        offload.settle(plan, known)
        if chance.randrange(3):
            await offload.settled()
    assert sources > 100


async def test_a_run_waits_for_what_another_session_of_its_scope_has_just_left(offload: KvOffload) -> None:
    device = Device(offload)
    tokens = array.array("I", range(72))
    before = await offload.plan("r1", key("a"), tokens, 0, 8, scope=b"mine")
    device.save(before, tokens, close=False)
    offload.settle(before, tokens)
    waiting = asyncio.create_task(offload.plan("r2", key("b"), tokens, 0, 8, scope=b"mine"))
    other = await offload.plan("r3", key("c"), tokens, 0, 8, scope=b"another's")
    assert other.source is None, "nobody waits for what is not theirs"
    await offload.abandon(other)
    assert not waiting.done()
    device.save(before, tokens)
    plan = await waiting
    assert plan.source is not None and plan.base_blocks == 17
    await offload.abandon(plan)
