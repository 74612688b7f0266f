"""A tenant's KV has a bound of its own: what goes for it is its own, the least valuable first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inference.kv.disk import DiskTier
from inference.kv.envelope import KvIdentity, SnapshotManifest
from inference.kv.eviction_rank import ReturnTracker
from inference.kv.tiers import Tiers
from inference.tokens import as_tokens
from sessions.model.types import SessionKey, TenantId
from tests.support.engines.kv import IDENTITY, key, make_tiers, payload_of

SIZE = 40_000
SMALL, LARGE = TenantId("small"), TenantId("large")


class SignallingDisk(DiskTier):
    """Says when something has been written, and writes nothing while it is not to `go`."""

    def __init__(self, folder: Path, bytes_max: int, identity: KvIdentity) -> None:
        super().__init__(folder, bytes_max, identity)
        self.written = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def put(self, manifest: SnapshotManifest, payload: Path) -> bool:
        await self.go.wait()
        stored = await super().put(manifest, payload)
        self.written.set()
        return stored


@pytest.fixture
def ceilings() -> dict[TenantId, int]:
    return {SMALL: 3 * SIZE}


@pytest.fixture
async def tiers(tmp_path: Path, ceilings: dict[TenantId, int]) -> AsyncIterator[Tiers]:
    (tmp_path / "staging").mkdir()
    disk = SignallingDisk(tmp_path / "kv", 1 << 30, IDENTITY)
    returns = ReturnTracker(lambda: 0.0)  # nobody is silent for longer because the machine stood still
    made = make_tiers(tmp_path / "staging", 100 * SIZE, disk, ceiling=ceilings.get, returns=returns)
    await made.open()
    yield made
    await made.close(0.0)


async def save(tiers: Tiers, who: SessionKey, *, size: int = SIZE) -> bool:
    if not await tiers.reserve(size, who.tenant):
        return False
    path = tiers.host.new_path()
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
    await tiers.host.settle()  # what is on its way to the disk stays until it is there
    assert await save(tiers, key("s3", SMALL))
    assert held(tiers, SMALL) == {"s0", "s2", "s3"}, "the parked one went"
    await tiers.host.settle()
    assert await save(tiers, key("s4", SMALL))
    assert held(tiers, SMALL) == {"s2", "s3", "s4"}, "and then the one that was used longest ago"
    await tiers.host.settle()
    assert tiers.quota.bytes_of(SMALL) <= 3 * SIZE
    assert held(tiers, LARGE) == {f"l{number}" for number in range(5)}
    assert tiers.counters["tenant_evictions"] >= 2


async def test_a_copy_that_arrives_when_the_ceiling_is_reached_does_not_stay(tiers: Tiers) -> None:
    (disk,) = tiers.cold
    assert isinstance(disk, SignallingDisk)
    disk.go.clear()
    for number in range(3):
        assert await save(tiers, key(f"s{number}", SMALL))
    disk.go.set()
    await tiers.host.settle()
    assert held(tiers, SMALL) == {"s0", "s1", "s2"} and disk.bytes == 0
    assert tiers.quota.bytes_of(SMALL) == 3 * SIZE


async def test_what_can_never_fit_is_not_taken_and_costs_nothing(tiers: Tiers) -> None:
    assert await save(tiers, key("s0", SMALL))
    assert not await save(tiers, key("big", SMALL), size=4 * SIZE)
    assert held(tiers, SMALL) == {"s0"} and tiers.counters["tenant_full"] == 1
    assert await save(tiers, key("big", LARGE), size=4 * SIZE)


async def test_what_somebody_reads_stays_until_it_is_read(tiers: Tiers, ceilings: dict[TenantId, int]) -> None:
    ceilings[SMALL] = SIZE
    assert await save(tiers, key("s0", SMALL))
    found, _ = tiers.catalog.find(key("s0", SMALL), as_tokens(range(10)))
    assert found is not None
    async with tiers.held(found):
        assert not await save(tiers, key("s1", SMALL))
        assert held(tiers, SMALL) == {"s0"}
    assert await save(tiers, key("s1", SMALL))
    assert held(tiers, SMALL) == {"s1"}
