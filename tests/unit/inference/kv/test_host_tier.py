"""Host memory: counted before it is written, evicted by worth, and never from under a reader."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from inference.kv.cost import CostModel
from inference.kv.eviction_rank import ReturnTracker
from inference.kv.host_tier import HostSnapshot, HostTier
from inference.kv.snapshot_worth import SnapshotWorth
from inference.tokens import as_tokens
from tests.support.engines.kv import key

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
