"""A tenant's KV has a bound of its own: what goes for it is its own, the least valuable first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inference.kv.disk import DiskTier
from inference.kv.envelope import KvIdentity, SnapshotManifest
from inference.kv.tiers import Tiers
from inference.llama.slot_usage import SlotUsage
from inference.llama.slots import Slot, SlotTable, least_recently_used
from inference.tokens import as_tokens
from inference.vllm import block_usage
from inference.vllm.block_usage import BlockUsage as VllmResident
from sessions.model.types import SessionKey, TenantId
from tests.support.kv import IDENTITY, key, payload_of

SIZE = 40_000
SMALL, LARGE = TenantId("small"), TenantId("large")


class Told(DiskTier):
    """Says when something has been written."""

    def __init__(self, folder: Path, bytes_max: int, identity: KvIdentity) -> None:
        super().__init__(folder, bytes_max, identity)
        self.written = asyncio.Event()

    async def put(self, manifest: SnapshotManifest, payload: Path) -> bool:
        stored = await super().put(manifest, payload)
        self.written.set()
        return stored


@pytest.fixture
async def tiers(tmp_path: Path) -> AsyncIterator[Tiers]:
    (tmp_path / "staging").mkdir()
    made = Tiers(IDENTITY, tmp_path / "staging", 100 * SIZE, Told(tmp_path / "kv", 1 << 30, IDENTITY))
    await made.open()
    made.holdings.ceiling = {SMALL: 3 * SIZE}.get
    yield made
    await made.close(0.0)


async def save(tiers: Tiers, who: SessionKey, *, size: int = SIZE) -> bool:
    if not await tiers.reserve(size, who.tenant):
        return False
    path = tiers.new_path()
    path.write_bytes(payload_of(str(who), size))
    tiers.adopt(who, as_tokens(range(10)), path, size, size)
    for host in tiers.host.of(who):
        if host.tagging is not None:
            await host.tagging
    return True


def held(tiers: Tiers, tenant: TenantId) -> set[str]:
    return {snapshot.key.session for snapshot in tiers.host if snapshot.key.tenant == tenant}


async def test_the_tenants_own_least_valuable_goes_and_nobody_elses(tiers: Tiers) -> None:
    for number in range(5):
        assert await save(tiers, key(f"l{number}", LARGE))
    for number in range(3):
        assert await save(tiers, key(f"s{number}", SMALL))
    tiers.park(key("s1", SMALL))
    assert await save(tiers, key("s3", SMALL))
    assert held(tiers, SMALL) == {"s0", "s2", "s3"}, "the parked one went"
    assert await save(tiers, key("s4", SMALL))
    assert held(tiers, SMALL) == {"s2", "s3", "s4"}, "and then the one that was used longest ago"
    assert tiers.holdings.bytes_of(SMALL) <= 3 * SIZE
    assert held(tiers, LARGE) == {f"l{number}" for number in range(5)}
    assert tiers.counters["tenant_evictions"] >= 2


async def test_copies_count_and_are_the_first_to_go(tiers: Tiers) -> None:
    tiers.holdings.ceiling = lambda tenant: None
    assert await save(tiers, key("s0", SMALL))
    (disk,) = tiers.cold
    assert isinstance(disk, Told)
    async with asyncio.timeout(10):
        await disk.written.wait()
    assert len(disk.of_tenant(SMALL)) == 1 and tiers.holdings.bytes_of(SMALL) > 2 * SIZE
    tiers.holdings.ceiling = {SMALL: 2 * SIZE + SIZE // 2}.get
    assert await save(tiers, key("s1", SMALL))
    assert held(tiers, SMALL) == {"s0", "s1"}
    assert disk.of(key("s0", SMALL)) == []


async def test_what_can_never_fit_is_not_taken_and_costs_nothing(tiers: Tiers) -> None:
    assert await save(tiers, key("s0", SMALL))
    assert not await save(tiers, key("big", SMALL), size=4 * SIZE)
    assert held(tiers, SMALL) == {"s0"} and tiers.counters["tenant_full"] == 1
    assert await save(tiers, key("big", LARGE), size=4 * SIZE)


async def test_what_somebody_reads_stays_until_it_is_read(tiers: Tiers) -> None:
    tiers.holdings.ceiling = {SMALL: SIZE}.get
    assert await save(tiers, key("s0", SMALL))
    found, _ = tiers.find(key("s0", SMALL), as_tokens(range(10)))
    assert found is not None
    async with tiers.held(found):
        assert not await save(tiers, key("s1", SMALL))
        assert held(tiers, SMALL) == {"s0"}
    assert await save(tiers, key("s1", SMALL))
    assert held(tiers, SMALL) == {"s1"}


class Books:
    """What `SlotUsage` asks of a residency."""

    def __init__(self) -> None:
        self.saving: set[int] = set()

    def unsaved_bytes(self, slot: Slot) -> int:
        return (len(slot.tokens) - slot.saved_tokens) * 1_000

    def is_saving(self, slot: Slot) -> bool:
        return slot.number in self.saving


async def test_sessions_at_rest_on_the_device_count_and_go_last(tiers: Tiers) -> None:
    table, books = SlotTable(4), Books()
    for name, tenant in (("s0", SMALL), ("s1", SMALL), ("l0", LARGE), ("busy", SMALL)):
        slot = table.acquire(key(name, tenant), as_tokens([]))
        assert slot is not None
        table.assign(slot, key(name, tenant))
        slot.tokens = as_tokens(range(40))
        if name != "busy":
            table.release(slot)
    SlotUsage(table, books, least_recently_used).join(tiers.holdings)  # type: ignore[arg-type]
    assert tiers.holdings.bytes_of(SMALL) == 120_000
    tiers.holdings.ceiling = {SMALL: 100_000}.get
    assert await tiers.holdings.make_room(SMALL, 0)
    assert [slot.key and slot.key.session for slot in table] == [None, "s1", "l0", "busy"], "the one used longest ago"
    books.saving.add(1)
    tiers.holdings.ceiling = {SMALL: 10_000}.get
    assert not await tiers.holdings.make_room(SMALL, 0), "what is being saved, or is busy, stays"
    books.saving.clear()
    assert not await tiers.holdings.make_room(SMALL, 0)
    assert [slot.key and slot.key.session for slot in table] == [None, None, "l0", "busy"]


async def test_what_vllm_has_on_the_device_counts_where_no_snapshot_covers_it(tiers: Tiers) -> None:
    busy: set[SessionKey] = set()
    covered: dict[SessionKey, int] = {}
    device = VllmResident(16, busy.__contains__)
    device.device_tokens = 1_000
    device.join(tiers.holdings, 1_000.0, lambda of: covered.get(of, 0))
    names = [key(name, tenant) for name, tenant in (("s0", SMALL), ("s1", SMALL), ("l0", LARGE), ("busy", SMALL))]
    tags = {name: device.tag(name) for name in names}
    for name in names:
        device.note(name, 50)  # three whole blocks
    busy.add(names[3])
    covered[names[1]] = 32
    assert tiers.holdings.bytes_of(SMALL) == 48_000 + 16_000
    tiers.holdings.ceiling = {SMALL: 20_000}.get
    assert await tiers.holdings.make_room(SMALL, 0)
    assert [device.tokens(name) for name in names] == [0, 48, 48, 48], "the one used longest ago"
    assert device.take_notices(tags[names[1]]) == ([tags[names[0]]], [])
    assert not device.stays(names[0], tags[names[0]]) and device.tag(names[0]) != tags[names[0]]
    tiers.holdings.ceiling = {SMALL: 10_000}.get
    assert await tiers.holdings.make_room(SMALL, 0)
    assert [device.tokens(name) for name in names] == [0, 0, 48, 48], "what runs stays, and another tenant's"
    device.note(names[0], 960)
    assert [device.tokens(name) for name in names] == [960, 0, 0, 0], "no more than the device has room for"


def test_stays_are_remembered_of_so_many_sessions_and_of_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_usage, "TAGS_MAX", 3)
    busy = {key("runs")}
    device = VllmResident(16, busy.__contains__)
    device.device_tokens = 1_000
    tags = {name: device.tag(key(name)) for name in ("runs", "a", "b", "c", "d")}
    for name in ("a", "b"):
        assert not device.stays(key(name), tags[name])
    for name in ("runs", "c", "d"):
        assert device.stays(key(name), tags[name])
    assert device.tag(key("c")) == tags["c"]
    busy.clear()
    device.tag(key("a"))
    assert device.stays(key("c"), tags["c"]) and not device.stays(key("runs"), tags["runs"])
