"""Push in memory: part of a backup, like all that is stored."""

from __future__ import annotations

from persistence.memory.store import MemoryStore
from sessions.model.push import GRACE_MS
from sessions.model.types import UnixMs
from tests.support.stores.journals import ACME, NOW
from tests.support.stores.push_rows import a_device, noted


async def test_a_restored_database_has_the_devices_and_rows_of_its_backup() -> None:
    store = MemoryStore()
    await store.open()
    await store.push.subscribe(a_device("phone"))
    await noted(store.journal)
    kept = store.database.backup()
    await store.push.unsubscribe(ACME, "ü", a_device("phone").id)
    store.database.restore(kept)
    assert await store.push.subscriptions(ACME, "ü") == [a_device("phone")]
    due = UnixMs(NOW + GRACE_MS)
    assert [row.subscription for row in await store.push.claim(due, until=due, limit=1)] == [a_device("phone")]
