"""Share links in SQL: what is refused leaves nothing, and what is taken away is written down once."""

from __future__ import annotations

import pytest

from persistence.sqlite.store import SqliteStore
from sessions.model.audit import Audited
from sessions.model.errors import BadInput, Limited, NotFound
from sessions.model.shares import ShareId, ShareLink, token_hash_of
from sessions.model.types import ItemId
from tests.support.stores.journals import ACME, NOW, a_log, key

ROW = Audited(action="session.shared", at=NOW)


def a_link(name: str, **more: str) -> ShareLink:
    given = {"id": ShareId(name), "token_hash": token_hash_of(name), "created_by": more.get("by", "k")}
    return ShareLink(key=key("s"), item_id=ItemId("i"), offset=1, created_at=NOW, **given)  # type: ignore[arg-type]


async def test_a_refused_share_leaves_neither_a_row_nor_an_audit_entry(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.sql.shares.SHARES_MAX", 1)
    with pytest.raises(NotFound):
        await store.shares.add(a_link("a"), ROW)
    await a_log(store.journal, "s", 1)
    with pytest.raises(BadInput):
        await store.shares.add(a_link("a", by="\0"), ROW)
    await store.shares.add(a_link("a"), ROW)
    with pytest.raises(Limited):
        await store.shares.add(a_link("b"), ROW)
    assert [link.id for link in await store.shares.of_session(key("s"))] == ["a"]
    assert len(await store.audit.rows(ACME, after=0, limit=9)) == 1


async def test_a_share_is_removed_once(store: SqliteStore) -> None:
    await a_log(store.journal, "s", 1)
    await store.shares.add(a_link("a"), ROW)
    assert [await store.shares.remove(key("s"), ShareId("a"), ROW) for _ in range(2)] == [True, False]
    assert await store.shares.find(token_hash_of("a")) is None
    assert len(await store.audit.rows(ACME, after=0, limit=9)) == 2
