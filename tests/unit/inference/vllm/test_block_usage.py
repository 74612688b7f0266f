"""What the front knows of vLLM's device: counted per tenant, shed from rest, and remembered for so many sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.vllm import block_usage
from inference.vllm.block_usage import BlockUsage
from sessions.model.types import SessionKey, TenantId
from tests.support.engines.kv import key, make_tiers

SMALL, LARGE = TenantId("small"), TenantId("large")


async def test_what_vllm_has_on_the_device_counts_where_no_snapshot_covers_it(tmp_path: Path) -> None:
    busy: set[SessionKey] = set()
    covered: dict[SessionKey, int] = {}
    device = BlockUsage(
        16, busy.__contains__, device_tokens=1_000, token_bytes=1_000.0, covered=lambda of: covered.get(of, 0)
    )
    ceilings = dict[TenantId, int]()
    quota = make_tiers(tmp_path, 1 << 20, device=device, ceiling=ceilings.get).quota
    names = [key(name, tenant) for name, tenant in (("s0", SMALL), ("s1", SMALL), ("l0", LARGE), ("busy", SMALL))]
    tags = {name: device.tag(name) for name in names}
    for name in names:
        device.note(name, 50)  # three whole blocks
    busy.add(names[3])
    covered[names[1]] = 32
    assert quota.bytes_of(SMALL) == 48_000 + 16_000
    ceilings[SMALL] = 20_000
    assert await quota.make_room(SMALL, 0)
    assert [device.tokens(name) for name in names] == [0, 48, 48, 48], "the one used longest ago"
    assert device.take_notices(tags[names[1]]) == ([tags[names[0]]], [])
    assert not device.stays(names[0], tags[names[0]]) and device.tag(names[0]) != tags[names[0]]
    ceilings[SMALL] = 10_000
    assert await quota.make_room(SMALL, 0)
    assert [device.tokens(name) for name in names] == [0, 0, 48, 48], "what runs stays, and another tenant's"
    device.note(names[0], 960)
    assert [device.tokens(name) for name in names] == [960, 0, 0, 0], "no more than the device has room for"


def test_stays_are_remembered_of_so_many_sessions_and_of_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_usage, "TAGS_MAX", 3)
    busy = {key("runs")}
    device = BlockUsage(16, busy.__contains__, device_tokens=1_000)
    tags = {name: device.tag(key(name)) for name in ("runs", "a", "b", "c", "d")}
    for name in ("a", "b"):
        assert not device.stays(key(name), tags[name])
    for name in ("runs", "c", "d"):
        assert device.stays(key(name), tags[name])
    assert device.tag(key("c")) == tags["c"]
    busy.clear()
    device.tag(key("a"))
    assert device.stays(key("c"), tags["c"]) and not device.stays(key("runs"), tags["runs"])
