"""Backups in memory, which the simulator puts back: all tables go together, as often as one likes."""

from __future__ import annotations

import pytest

from persistence.memory.database import MemoryDatabase
from persistence.memory.store import MemoryStore
from sessions.model.audit import Audited
from sessions.model.errors import Fenced
from sessions.model.knowledge.files import FileTotals
from sessions.model.push import GRACE_MS
from sessions.model.shares import ShareId, ShareLink, token_hash_of
from sessions.model.types import ItemId, UnixMs
from tests.support.stores.audit_tables import a_row
from tests.support.stores.file_rows import content_of, uploaded
from tests.support.stores.journals import ACME, NOW, a_log, a_usage, an_append, grant, key
from tests.support.stores.push_rows import a_device, noted


async def test_a_backup_is_a_copy_and_may_be_restored_more_than_once() -> None:
    names = iter("abcdef")
    database = MemoryDatabase(new_id=lambda: next(names))
    store = MemoryStore(database)
    await store.open()
    journal = store.journal
    head = await a_log(journal, "s", 1, usage=(a_usage("r1"),), audit=(a_row(1),))
    kept = database.backup()
    await journal.append(an_append(head, 1, usage=(a_usage("r2"),), audit=(a_row(2),)))
    for incarnation in ("b", "c"):
        database.restore(kept)
        assert journal.incarnation == incarnation
        found = await journal.head(head.key)
        assert found is not None and found.top == 1
        assert len(await store.usage.of_session(head.key)) == len(await store.audit.rows(ACME, after=0, limit=9)) == 1
        with pytest.raises(Fenced):
            await journal.append(an_append(head, 1))
        new = await grant(journal, head.key, found.fence, epoch=f"epoch {incarnation}")
        assert new.epoch == f"epoch {incarnation}"
        await journal.append(an_append(new, 1, audit=(a_row(3),)))


async def test_files_devices_and_links_come_back() -> None:
    store = MemoryStore()
    await store.open()
    file = await uploaded(store.files, b"kept")
    await store.push.subscribe(a_device("phone"))
    await noted(store.journal)
    about = {"created_at": NOW, "created_by": "k", "item_id": ItemId("i"), "offset": 1}
    link = ShareLink(key=key("s"), id=ShareId("a"), token_hash=token_hash_of("a"), **about)  # type: ignore[arg-type]
    await store.shares.add(link, Audited(action="session.shared", at=NOW))
    kept = store.database.backup()
    await store.files.remove(ACME, file.id, NOW)
    await store.files.collect(NOW, limit=9)
    assert await store.files.totals(ACME, "ü") == FileTotals()
    await store.push.unsubscribe(ACME, "ü", a_device("phone").id)
    assert await store.shares.remove(key("s"), ShareId("a"), Audited(action="session.unshared", at=NOW))
    store.database.restore(kept)
    assert await content_of(store.files, file) == b"kept"
    assert await store.push.subscriptions(ACME, "ü") == [a_device("phone")]
    due = UnixMs(NOW + GRACE_MS)
    assert [row.subscription for row in await store.push.claim(due, until=due, limit=1)] == [a_device("phone")]
    assert await store.shares.find(token_hash_of("a")) == link
