"""What a tenant's sessions hold in slots, and which slot is emptied first when that is too much."""

from __future__ import annotations

import array
from pathlib import Path

from inference.llama.slot_usage import SlotUsage
from inference.llama.slots import SlotTable
from inference.tokens import as_tokens
from sessions.model.types import TenantId
from tests.support.engines.kv import key, make_tiers

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


def held(table: SlotTable) -> list[str | None]:
    return [slot.key and slot.key.session for slot in table]


async def test_sessions_at_rest_are_counted_and_the_one_used_longest_ago_is_shed(tmp_path: Path) -> None:
    table = filled(("s0", SMALL), ("s1", SMALL), ("l0", LARGE), ("busy", SMALL))
    usage = SlotUsage(table, make_tiers(tmp_path, 1 << 20).catalog, 1_000)
    assert usage.bytes_of(SMALL) == (120_000, 80_000) and usage.bytes_of(LARGE) == (40_000, 40_000)
    assert usage.device_bytes == 160_000
    assert usage.shed(SMALL)
    assert held(table) == [None, "s1", "l0", "busy"]
    next(slot for slot in table if slot.number == 1).saving = True
    assert not usage.shed(SMALL), "what is being saved, or is busy, stays"
    assert usage.bytes_of(SMALL) == (80_000, 0)
