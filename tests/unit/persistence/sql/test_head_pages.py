"""Pages of heads of which some cannot be read: the others stand in them all the same."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from persistence.at_rest.codec import SealingCodec
from persistence.sqlite.store import SqliteStore
from sessions.model.errors import Internal
from sessions.model.types import Epoch, TenantId, UnixMs
from tests.support.stores.journals import ACME, SqliteBed, a_log, an_append, grant, key, patch


async def test_a_tenant_whose_keys_are_destroyed_stops_no_sweep(tmp_path: Path) -> None:
    store = await SqliteBed(tmp_path, sealed=True).open()
    assert isinstance(store, SqliteStore) and isinstance(store.database.codec, SealingCodec)
    for tenant in ("acme", "globex"):
        head = await grant(store.journal, key("s", tenant))
        about = patch(open=True, title=f"of {tenant}")
        await store.journal.append(an_append(head, 1, head=about, at=UnixMs(1)))
    await store.database.codec.keys.destroy(ACME)
    heads = await store.journal.open_heads(limit=10, after=None)
    assert [(head.key.tenant, head.title) for head in heads] == [("acme", None), ("globex", "of globex")]
    listed = await store.journal.list_heads(ACME, user=None, limit=10, after=None)
    assert [head.key for head in listed] == [key("s")]
    alone = await store.journal.head(key("s"))
    assert alone is not None and alone.title is None
    again = await store.journal.grant(
        key("s"), expected_fence=alone.fence, owner="r/a", new_epoch=Epoch("e"), now_ms=UnixMs(2)
    )
    assert again.fence > alone.fence and again.title is None
    with pytest.raises(Internal):
        await store.journal.load(key("s"), now_ms=UnixMs(3))
    await store.close()


async def test_a_damaged_head_costs_its_title_alone(tmp_path: Path) -> None:
    bed = SqliteBed(tmp_path)
    store = await bed.open()
    for name in ("one", "two", "three"):
        await a_log(store.journal, name, 1)
    await store.close()
    with closing(sqlite3.connect(tmp_path / "data" / "journal.db")) as database:
        database.execute("UPDATE heads SET about = x'ff00' WHERE session = 'two'")
        database.commit()
    store = await bed.open()
    heads = await store.journal.list_heads(TenantId("acme"), user=None, limit=10, after=None)
    assert {head.key.session for head in heads} == {"one", "two", "three"}
    alone = await store.journal.head(key("two"))
    assert alone is not None and alone.title is None and alone.top == 1
    await store.close()
