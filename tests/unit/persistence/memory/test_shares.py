"""Share links in memory: bounded, newest first, and part of a backup."""

from __future__ import annotations

import pytest

from persistence.memory.store import MemoryStore
from sessions.model.audit import Audited
from sessions.model.errors import Limited, NotFound
from sessions.model.shares import ShareId, ShareLink, token_hash_of
from sessions.model.types import ItemId, UnixMs
from tests.support.stores.journals import ACME, NOW, a_log, key

ROW = Audited(action="session.shared", at=NOW)


def a_link(name: str, at: int = NOW) -> ShareLink:
    return ShareLink(
        id=ShareId(name),
        key=key("s"),
        token_hash=token_hash_of(name),
        item_id=ItemId("i"),
        offset=1,
        created_at=UnixMs(at),
        created_by="k",
    )


async def test_shares_are_bounded_and_listed_newest_first(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.memory.shares.SHARES_MAX", 2)
    with pytest.raises(NotFound):
        await store.shares.add(a_link("a"), ROW)
    await a_log(store.journal, "s", 1)
    for link in (a_link("b", NOW + 1), a_link("a")):
        await store.shares.add(link, ROW)
    with pytest.raises(Limited):
        await store.shares.add(a_link("c"), ROW)
    assert [link.id for link in await store.shares.of_session(key("s"))] == ["b", "a"]
    assert len(await store.audit.rows(ACME, after=0, limit=9)) == 2


async def test_a_backup_has_the_links_of_its_time(store: MemoryStore) -> None:
    await a_log(store.journal, "s", 1)
    await store.shares.add(a_link("a"), ROW)
    kept = store.database.backup()
    assert await store.shares.remove(key("s"), ShareId("a"), ROW)
    assert not await store.shares.remove(key("s"), ShareId("a"), ROW)
    store.database.restore(kept)
    assert await store.shares.find(token_hash_of("a")) == a_link("a")
