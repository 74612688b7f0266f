"""Bounds over all tenants; what holds for each is in tests/contract/test_result_store.py."""

from __future__ import annotations

from actors.results.store import ENTRY_OVERHEAD_BYTES, MemoryResultStore, StoredResult
from sessions.model.types import TenantId

ONE, TWO = TenantId("one"), TenantId("two")


async def test_all_tenants_together_are_bounded_and_counted() -> None:
    size = 1_000
    store = MemoryResultStore(3 * (size + ENTRY_OVERHEAD_BYTES), lambda: 0.0)
    for number, tenant in enumerate((ONE, TWO, ONE, TWO)):
        result = StoredResult(bytes([number]), b"m", bytes(size))
        await store.put(tenant, result, ttl_s=10, bytes_max=1 << 20)
    assert [await store.get(tenant, bytes([n])) is None for n, tenant in enumerate((ONE, TWO, ONE, TWO))] == [
        True,
        False,
        False,
        False,
    ], "the one that had most made room"
    assert len(store) == 3 and store.size == 3 * (size + ENTRY_OVERHEAD_BYTES)
    await store.put(ONE, StoredResult(b"x", b"m", bytes(1 << 20)), ttl_s=10, bytes_max=1 << 30)
    assert len(store) == 3, "it would have taken more than all of the room"
    await store.drop(TWO, None)
    assert store.size == size + ENTRY_OVERHEAD_BYTES
    await store.close()
    assert (len(store), store.size) == (0, 0)
