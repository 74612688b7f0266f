"""What lies below host memory: copied down behind the back, brought up ahead, given up when late, ranked, counted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from inference.kv.cold_tier import PIECE_BYTES_MIN, ColdSnapshot, FetchProgress
from inference.kv.cost import RestoreChoice
from inference.kv.envelope import SnapshotManifest, SnapshotRefused
from inference.kv.tiers import Tiers
from inference.tokens import as_tokens
from persistence.keys import MemoryKeyStore
from sessions.model.types import SessionKey
from sessions.ports import Keys
from tests.support.engines.kv import HeldDisk, key, make_tiers, payload_of, spill

SIZE = 40_000


class Bed:
    """Tiers on one disk, opened anew as after a restart."""

    def __init__(self, folder: Path) -> None:
        self.staging, self.disk = folder / "staging", HeldDisk(folder / "kv", MemoryKeyStore())
        self.staging.mkdir()

    async def opened(self, host: int = 1 << 24) -> Tiers:
        self.disk = HeldDisk(self.disk.folder, self.disk.keys)
        tiers = make_tiers(self.staging, host, self.disk)
        await tiers.open()
        return tiers


async def save(tiers: Tiers, who: SessionKey, num_tokens: int = 10) -> None:
    assert await spill(tiers, who, range(num_tokens), payload=payload_of(f"{who}", SIZE))


async def cold(bed: Bed, who: SessionKey) -> tuple[Tiers, ColdSnapshot]:
    """Tiers after a restart, with the session on disk only."""
    tiers = await bed.opened()
    await save(tiers, who)
    await tiers.close(5.0)
    tiers = await bed.opened()
    found, _ = tiers.catalog.find(who, as_tokens(range(10)))
    assert isinstance(found, ColdSnapshot)
    return tiers, found


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


async def test_a_restore_that_is_late_is_given_up_and_found_in_memory_by_the_next(bed: Bed) -> None:
    tiers, snapshot = await cold(bed, key("a"))
    bed.disk.go.clear()
    with pytest.raises(SnapshotRefused, match=r"^too_late$"):
        async with tiers.payload(snapshot, RestoreChoice(True, 0.0, 1.0, 0.01)):
            raise AssertionError("it cannot be here yet")
    assert tiers.counters["refused_too_late"] == 1
    bed.disk.go.set()
    await tiers.host.settle()
    found, shared = tiers.catalog.find(key("a"), as_tokens(range(10)))
    assert tiers.catalog.place(key("a")).tier == "host" and found is not None and shared == 10
    async with tiers.payload(found) as host:
        assert host.path.read_bytes() == payload_of(f"{key('a')}", SIZE)
    await tiers.close(0.0)


class TricklingDisk(HeldDisk):
    """A disk of which a piece comes, and then nothing until it is let go."""

    async def fetch(
        self, snapshot: ColdSnapshot, payload: Path, progress: FetchProgress | None = None
    ) -> SnapshotManifest:
        assert progress is not None
        progress.passed(8)
        progress.passed(PIECE_BYTES_MIN)
        return await super().fetch(snapshot, payload, progress)


async def trickling(bed: Bed) -> tuple[Tiers, TricklingDisk, ColdSnapshot]:
    """Of a snapshot of 40 kB."""
    first, _ = await cold(bed, key("a"))
    await first.close(0.0)
    disk = TricklingDisk(bed.disk.folder, bed.disk.keys)
    tiers = make_tiers(bed.staging, 1 << 24, disk)
    await tiers.open()
    found, _ = tiers.catalog.find(key("a"), as_tokens(range(10)))
    assert isinstance(found, ColdSnapshot)
    disk.go.clear()
    return tiers, disk, found


async def test_a_read_that_shows_to_be_slower_than_computing_ends_and_is_learned(bed: Bed) -> None:
    tiers, disk, snapshot = await trickling(bed)
    tiers.cost.prefilled(0, 10, 0.02)
    choice = msgspec.structs.replace(tiers.choose(snapshot, 0, 10), deadline_s=30.0)
    assert choice.restore
    with pytest.raises(SnapshotRefused, match=r"^too_slow$"):
        async with tiers.payload(snapshot, choice):
            raise AssertionError("the rest takes longer than computing")
    assert tiers.counters["refused_too_slow"] == 1
    disk.go.set()
    await tiers.host.settle()
    assert disk.counters["disk_reads"] == 0 and tiers.host.bytes == 0 and list(bed.staging.iterdir()) == []
    assert tiers.catalog.place(key("a")).tier == "disk"  # nothing is wrong with the snapshot
    again = tiers.choose(snapshot, 0, 10)
    assert not again.restore and again.restore_s > again.recompute_s
    await tiers.close(0.0)


async def test_a_read_goes_on_for_whoever_has_more_to_compute(bed: Bed) -> None:
    tiers, disk, snapshot = await trickling(bed)

    async def turn() -> bytes:
        async with tiers.payload(snapshot) as host:
            return host.path.read_bytes()

    patient = asyncio.create_task(turn())
    await disk.asked.wait()
    with pytest.raises(SnapshotRefused):
        async with tiers.payload(snapshot, RestoreChoice(True, 0.0, 0.01, 30.0, 0.01)):
            raise AssertionError("the rest takes longer than computing")
    disk.go.set()
    assert await patient == payload_of(f"{key('a')}", SIZE)
    await tiers.close(0.0)


async def test_erased_on_its_way_up_it_does_not_arrive(bed: Bed) -> None:
    tiers, snapshot = await cold(bed, key("a"))
    bed.disk.go.clear()
    await tiers.prefetch(key("a"))
    await bed.disk.asked.wait()
    await tiers.erase(key("a"))
    bed.disk.go.set()
    await tiers.host.settle()
    assert tiers.catalog.place(key("a")).tier == "none" and tiers.host.bytes == 0
    assert list(bed.staging.iterdir()) == [] and list(bed.disk.folder.iterdir()) == []
    with pytest.raises(SnapshotRefused):
        async with tiers.payload(snapshot):
            raise AssertionError("it is gone")
    await tiers.close(0.0)


class LateDisk(HeldDisk):
    """A disk that reads sooner than it erases."""

    def __init__(self, folder: Path, keys: Keys | None) -> None:
        super().__init__(folder, keys)
        self.read = asyncio.Event()

    async def fetch(
        self, snapshot: ColdSnapshot, payload: Path, progress: FetchProgress | None = None
    ) -> SnapshotManifest:
        try:
            return await super().fetch(snapshot, payload, progress)
        finally:
            self.read.set()

    async def erase(self, key: SessionKey) -> None:
        await self.read.wait()
        await super().erase(key)


async def test_erased_as_its_way_up_begins_it_does_not_arrive(bed: Bed) -> None:
    first, _ = await cold(bed, key("a"))
    await first.close(0.0)
    disk = LateDisk(bed.disk.folder, bed.disk.keys)
    tiers = make_tiers(bed.staging, 1 << 24, disk)
    await tiers.open()
    await tiers.prefetch(key("a"))
    await tiers.erase(key("a"))  # the read has not had its first turn yet
    await tiers.host.settle()
    assert tiers.catalog.place(key("a")).tier == "none" and tiers.host.bytes == 0
    assert list(bed.staging.iterdir()) == [] and list(disk.folder.iterdir()) == []
    await tiers.close(0.0)
