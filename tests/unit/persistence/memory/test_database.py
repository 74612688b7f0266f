"""The rows in memory: backups, and tables that go together."""

from __future__ import annotations

import pytest

from persistence.memory.database import MemoryDatabase
from persistence.memory.store import MemoryStore
from sessions.model.errors import Fenced
from sessions.model.journal_types import Due
from sessions.model.types import UnixMs
from tests.support.stores.audit_tables import a_row
from tests.support.stores.journals import ACME, NOW, a_command, a_log, a_usage, an_append, grant, key, patch, purge


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


async def test_a_purge_takes_what_hangs_on_a_session_and_leaves_its_usage() -> None:
    store = MemoryStore()
    await store.open()
    journal = store.journal
    gone = await a_log(journal, "gone", 2, head=patch(deleted_at=NOW), usage=(a_usage("r"),), commands=(a_command(1),))
    kept = await a_log(journal, "kept", 1, commands=(a_command(1), a_command(2, at=NOW - 99)))
    due = Due(deleted_before=UnixMs(NOW + 1))
    assert await purge(journal, due, commands_before=UnixMs(NOW - 9), limit=9) == [gone.key]
    assert await journal.load(gone.key, now_ms=NOW) is None and store.database.keys() == [kept.key]
    loaded = await journal.load(kept.key, now_ms=NOW)
    assert loaded is not None and loaded.commands == (a_command(1),), "an old one is forgotten"
    assert await store.usage.without_log() == 1
    (row,) = await store.audit.rows(ACME, after=0, limit=9)
    assert b"session.purged" in row.body
    assert await journal.head(key("never")) is None
