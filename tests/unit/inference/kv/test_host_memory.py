"""Host memory and its index: counted before it is written, a bound for each tenant, evicted by worth."""

from __future__ import annotations

import array
import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from inference.kv import staging as staging_module
from inference.kv.cost import CostModel
from inference.kv.disk import DiskTier
from inference.kv.envelope import KvIdentity, SnapshotManifest
from inference.kv.eviction_rank import ReturnTracker
from inference.kv.host_tier import HostSnapshot, HostTier
from inference.kv.index import SAMPLE, Blob, SnapshotIndex, lowest_ranked
from inference.kv.snapshot_worth import SnapshotWorth
from inference.kv.staging import StagingFolder
from inference.kv.tiers import Tiers
from inference.tokens import as_tokens, common_prefix
from sessions.model.errors import BadInput
from sessions.model.types import SessionKey, TenantId
from tests.support.engines.kv import IDENTITY, key, make_tiers, payload_of, spill

# -- host tier
SIZE = 1_000


@pytest.fixture
def host(tmp_path: Path) -> HostTier:
    return HostTier(tmp_path, 3 * SIZE, None, SnapshotWorth(ReturnTracker(time.monotonic), CostModel()))


async def put(host: HostTier, name: str, num_tokens: int = 4) -> HostSnapshot:
    assert await host.reserve(SIZE)
    path = host.new_path()
    path.write_bytes(bytes(SIZE))
    snapshot = HostSnapshot(key(name), as_tokens(range(num_tokens)), path, SIZE)
    host.add(snapshot, reserved=SIZE)
    return snapshot


@pytest.mark.parametrize(("worth_s", "saved"), [(3_600.0, True), (0.0, False)])
async def test_what_takes_long_to_compute_waits_for_a_slow_disk_to_make_room(
    host: HostTier, monkeypatch: pytest.MonkeyPatch, worth_s: float, saved: bool
) -> None:
    monkeypatch.setattr("inference.kv.host_tier._ROOM_WAIT_S", 0.0)  # the disk takes longer
    monkeypatch.setattr("inference.kv.host_tier._ROOM_WAIT_MAX_S", 3_600.0)
    first, *_ = [await put(host, name) for name in "abc"]
    written, drop = asyncio.Event(), host.drop

    async def slow(snapshot: HostSnapshot) -> None:
        await written.wait()
        await drop(snapshot)

    monkeypatch.setattr(host, "drop", slow)
    reserving = asyncio.create_task(host.reserve(SIZE, worth_s))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert first.moving
    if not saved:
        assert not await reserving and host.counters["host_full"] == 1
    written.set()
    assert not saved or await reserving
    await host.settle()


# -- index
class Thing:
    def __init__(self, key: SessionKey, size: int, scope: Blob = b"", tokens: str = "") -> None:
        self.key = key
        self.bytes = size
        self.scope = scope
        self.tokens = array.array("I", map(ord, tokens))


class Move(NamedTuple):
    adds: bool
    tenant: str
    session: str
    size: int
    scope: bytes
    tokens: str


TOKENS = st.text("xy", max_size=5)
SCOPES = (b"", b"s", b"t")
MOVES = st.lists(
    st.builds(
        Move,
        st.booleans(),
        st.sampled_from("tu"),
        st.sampled_from("abc"),
        st.integers(0, 9),
        st.sampled_from(SCOPES),
        TOKENS,
    )
)


@given(MOVES, TOKENS)
def test_it_says_what_a_list_would_say(moves: list[Move], prompt: str) -> None:
    sought = array.array("I", map(ord, prompt))
    shelf, held = SnapshotIndex[Thing](), list[Thing]()
    gone = Thing(key("a", "t"), 5)
    for move in moves:
        who = key(move.session, move.tenant)
        if move.adds:
            held.append(Thing(who, move.size, move.scope, move.tokens))
            shelf.add(held[-1])
        else:
            found = next((thing for thing in held if thing.key == who), gone)
            assert shelf.remove(found) == (found in held)
            held = [thing for thing in held if thing is not found]
        assert len(shelf) == len(held) and set(shelf) == set(held)
        assert set(shelf.sessions) == {thing.key for thing in held}
        assert gone not in shelf and all(thing in shelf for thing in held)
        for tenant in map(TenantId, "tu"):
            own = [thing for thing in held if thing.key.tenant == tenant]
            assert set(shelf.of_tenant(tenant)) == set(own)
            assert shelf.bytes_of(tenant) == sum(thing.bytes for thing in own)
            for scope in SCOPES:
                shares = {thing: common_prefix(thing.tokens, sought) for thing in own if scope and thing.scope == scope}
                nearest, most = shelf.nearest(tenant, scope, sought)
                assert most == max(shares.values(), default=0), "nothing of another scope or tenant, nor of none"
                assert (nearest is None) == (not most) and (nearest is None or shares[nearest] == most)
            for session in "abc":
                assert shelf.of(key(session, tenant)) == [t for t in own if t.key.session == session], "in order"


def test_of_few_the_least_is_found_and_of_many_one_of_the_least() -> None:
    assert lowest_ranked([], abs) is None
    assert lowest_ranked(range(SAMPLE, 0, -1), abs) == 1
    ranked = list[int]()
    found = lowest_ranked(range(100 * SAMPLE), lambda number: ranked.append(number) or number)  # type: ignore[func-returns-value]
    assert found is not None and found < 10 * SAMPLE, "the chance that none of the drawn is of the worst tenth is 2e-12"
    assert len(ranked) == SAMPLE and len(set(ranked)) == SAMPLE


# -- catalog
async def opened(folder: Path) -> Tiers:
    staging = folder / "staging"
    staging.mkdir(exist_ok=True)
    tiers = make_tiers(staging, 1 << 20, DiskTier(folder / "kv", 1 << 20, IDENTITY))
    await tiers.open()
    return tiers


async def save(tiers: Tiers, who: SessionKey, tokens: list[int], scope: bytes = b"") -> None:
    assert await spill(tiers, who, tokens, payload=bytes(SIZE), scope=scope)
    await tiers.host.settle()


async def test_the_snapshot_that_shares_most_is_found_and_the_faster_one_of_two(tmp_path: Path) -> None:
    tiers = await opened(tmp_path)
    catalog = tiers.catalog
    assert catalog.find(key("a"), as_tokens([1])) == (None, 0) and catalog.place(key("a")).tier == "none"
    await save(tiers, key("a"), [1, 2, 3, 4])
    await save(tiers, key("a"), [1, 2, 9])
    found, shared = catalog.find(key("a"), as_tokens([1, 2, 9, 9]))
    assert isinstance(found, HostSnapshot) and shared == 3, "and not its copy on disk"
    assert catalog.find(key("a"), as_tokens([7])) == (None, 0)
    longest = catalog.longest(key("a"))
    assert longest is not None and len(longest.tokens) == 4
    assert catalog.place(key("a")).tier == "host" and catalog.place(key("a")).tokens == 4
    for snapshot in tiers.host.of(key("a")):
        await catalog.drop(snapshot)
    assert catalog.place(key("a")).tier == "disk"
    await tiers.close(0.0)


async def test_a_run_finds_what_other_sessions_of_its_scope_hold_in_every_tier_and_after_a_restart(
    tmp_path: Path,
) -> None:
    tiers = await opened(tmp_path)
    await save(tiers, key("a"), [1, 2, 3, 4], b"mine")
    await save(tiers, key("b"), [1, 2], b"mine")
    await save(tiers, key("c"), [1, 2, 3, 5, 6], b"another's")
    await save(tiers, key("d"), [1, 2, 3, 5, 6])
    await save(tiers, key("e", "other"), [1, 2, 3, 5, 6], b"mine")
    prompt = as_tokens([1, 2, 3, 5, 6])
    for tier in ("host", "disk"):
        found, shared = tiers.catalog.find_near(key("b"), prompt, b"mine")
        assert found is not None and (found.key, found.tier, shared) == (key("a"), tier, 3)
        assert tiers.catalog.find_near(key("new"), prompt, b"") == (None, 0)
        assert tiers.catalog.find_near(key("new"), prompt, b"nobody's") == (None, 0)
        own, shared = tiers.catalog.find_near(key("b"), as_tokens([1, 2, 9]), b"mine")
        assert own is not None and (own.key, shared) == (key("b"), 2), "of two that share as much its own"
        await tiers.close(10.0)
        tiers = await opened(tmp_path)
    await tiers.erase(key("a"))
    assert tiers.catalog.find_near(key("new"), prompt, b"mine")[1] == 2, "what is erased is found by nobody"
    await tiers.close(0.0)


# -- tenant quota
QUOTA_SIZE = 40_000
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
    return {SMALL: 3 * QUOTA_SIZE}


@pytest.fixture
async def tiers(tmp_path: Path, ceilings: dict[TenantId, int]) -> AsyncIterator[Tiers]:
    (tmp_path / "staging").mkdir()
    disk = SignallingDisk(tmp_path / "kv", 1 << 30, IDENTITY)
    returns = ReturnTracker(lambda: 0.0)  # nobody is silent for longer because the machine stood still
    made = make_tiers(tmp_path / "staging", 100 * QUOTA_SIZE, disk, ceiling=ceilings.get, returns=returns)
    await made.open()
    yield made
    await made.close(0.0)


async def save_snapshot(tiers: Tiers, who: SessionKey, *, size: int = QUOTA_SIZE) -> bool:
    stored = await spill(tiers, who, payload=payload_of(str(who), size))
    for host in tiers.host.of(who):
        if host.tagging is not None:
            await host.tagging
    return stored


def held(tiers: Tiers, tenant: TenantId) -> set[str]:
    return {snapshot.key.session for snapshot in tiers.host if snapshot.key.tenant == tenant}


async def test_the_tenants_own_least_valuable_goes_and_nobody_elses(tiers: Tiers) -> None:
    for number in range(5):
        assert await save_snapshot(tiers, key(f"l{number}", LARGE))
    for number in range(3):
        assert await save_snapshot(tiers, key(f"s{number}", SMALL))
    tiers.park(key("s1", SMALL))
    await tiers.host.settle()  # what is on its way to the disk stays until it is there
    assert await save_snapshot(tiers, key("s3", SMALL))
    assert held(tiers, SMALL) == {"s0", "s2", "s3"}, "the parked one went"
    await tiers.host.settle()
    assert await save_snapshot(tiers, key("s4", SMALL))
    assert held(tiers, SMALL) == {"s2", "s3", "s4"}, "and then the one that was used longest ago"
    await tiers.host.settle()
    assert tiers.quota.bytes_of(SMALL) <= 3 * QUOTA_SIZE
    assert held(tiers, LARGE) == {f"l{number}" for number in range(5)}
    assert tiers.counters["tenant_evictions"] >= 2


async def test_a_copy_that_arrives_when_the_ceiling_is_reached_does_not_stay(tiers: Tiers) -> None:
    (disk,) = tiers.cold
    assert isinstance(disk, SignallingDisk)
    disk.go.clear()
    for number in range(3):
        assert await save_snapshot(tiers, key(f"s{number}", SMALL))
    disk.go.set()
    await tiers.host.settle()
    assert held(tiers, SMALL) == {"s0", "s1", "s2"} and disk.bytes == 0
    assert tiers.quota.bytes_of(SMALL) == 3 * QUOTA_SIZE


async def test_what_can_never_fit_is_not_taken_and_costs_nothing(tiers: Tiers) -> None:
    assert await save_snapshot(tiers, key("s0", SMALL))
    assert not await save_snapshot(tiers, key("big", SMALL), size=4 * QUOTA_SIZE)
    assert held(tiers, SMALL) == {"s0"} and tiers.counters["tenant_full"] == 1
    assert await save_snapshot(tiers, key("big", LARGE), size=4 * QUOTA_SIZE)


async def test_what_somebody_reads_stays_until_it_is_read(tiers: Tiers, ceilings: dict[TenantId, int]) -> None:
    ceilings[SMALL] = QUOTA_SIZE
    assert await save_snapshot(tiers, key("s0", SMALL))
    found, _ = tiers.catalog.find(key("s0", SMALL), as_tokens(range(10)))
    assert found is not None
    async with tiers.held(found):
        assert not await save_snapshot(tiers, key("s1", SMALL))
        assert held(tiers, SMALL) == {"s0"}
    assert await save_snapshot(tiers, key("s1", SMALL))
    assert held(tiers, SMALL) == {"s1"}


# -- staging
def test_without_memory_for_it_nothing_is_spilled_unless_a_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "MEMORY_BACKED", tmp_path / "shm")
    with capture_logs() as logs:
        assert staging_module.create_staging_folder(None) is None
    (entry,) = logs
    assert entry["event"] == "kv_spill_disabled"
    assert "--shm-size" in entry["advice"] and "--kv-staging" in entry["advice"]
    assert not (tmp_path / "shm").exists()
    named = staging_module.create_staging_folder(tmp_path / "named")
    assert named is not None and named.path.parent == tmp_path / "named"
    named.close()
    (tmp_path / "file").touch()
    with pytest.raises(BadInput) as refused:
        staging_module.create_staging_folder(tmp_path / "file")
    assert refused.value.code == "bad_kv_folder" and str(tmp_path / "file") in refused.value.public_message


def test_too_little_memory_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = StagingFolder(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=64_000_000))
    with capture_logs() as logs:
        assert folder.bound_bytes(50_000_000) == 50_000_000 and not logs
        assert folder.bound_bytes(4 << 30) == 51_200_000
    folder.close()
    (entry,) = logs
    assert (entry["event"], entry["room_mb"], entry["requested_mb"]) == ("host_tier_reduced", 51, 4294)
    assert "--shm-size" in entry["advice"] and "--kv-host-mb" in entry["advice"]


def test_host_memory_that_holds_no_whole_session_is_said_at_the_start() -> None:
    with capture_logs() as logs:
        staging_module.warn_where_small(1 << 30, 1 << 30)
        assert not logs
        staging_module.warn_where_small(4 << 30, 120_000 * 131_072)
    (entry,) = logs
    assert (entry["event"], entry["host_mb"], entry["session_mb"]) == ("host_tier_small", 4294, 15729)


async def test_erasing_a_session_reaches_what_is_on_its_way(host: HostTier) -> None:
    with host.pending(key("a")) as one, host.pending(key("b")) as other:
        host.revoke(key("a"))
        assert one.revoked and not other.revoked
    with host.pending(key("a")) as later:
        assert not later.revoked
