"""Host memory: counted before it is written, evicted by worth, and never from under a reader."""

from __future__ import annotations

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


async def test_erasing_a_session_reaches_what_is_on_its_way(host: HostTier) -> None:
    with host.pending(key("a")) as one, host.pending(key("b")) as other:
        host.revoke(key("a"))
        assert one.revoked and not other.revoked
    with host.pending(key("a")) as later:
        assert not later.revoked
