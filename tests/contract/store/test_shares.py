"""One suite for shares on every store: found by their token's hash, bounded, gone with their session."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model.audit import Audited, public
from sessions.model.errors import Limited, NotFound
from sessions.model.journal_types import Due
from sessions.model.shares import ShareId, ShareLink, ShareStore, token_hash_of
from sessions.model.types import ItemId, UnixMs
from sessions.store import Store
from tests.support.stores.journals import ACME, NOW, Bed, a_log, an_append, key, patch, purge

ROW = Audited(action="session.shared", at=NOW, detail={"share": "x"})


@pytest.fixture
def shares(store: Store) -> ShareStore:
    return store.shares


def a_share(name: str, session: str = "s", *, tenant: str = ACME, **more: Any) -> ShareLink:
    given = {"item_id": ItemId("msg_ünï"), "offset": 7, "created_at": NOW, "created_by": "app/ana 🙂", **more}
    return ShareLink(id=ShareId(name), key=key(session, tenant), token_hash=token_hash_of(name), **given)


async def test_a_share_is_found_by_its_token_alone(store: Store, shares: ShareStore) -> None:
    for tenant in (ACME, "beta"):
        await a_log(store.journal, "s", 2, tenant=tenant)
    mine, later = a_share("a"), a_share("b", created_at=UnixMs(NOW + 1))
    for each in (mine, later, a_share("c", tenant="beta")):
        await shares.add(each, ROW)
    assert await shares.find(token_hash_of("a")) == mine
    assert await shares.find(token_hash_of("d")) is None
    assert await shares.of_session(key("s")) == [later, mine]
    assert await shares.of_session(key("t")) == []


async def test_a_revoked_share_is_removed_and_both_changes_are_audited(store: Store, shares: ShareStore) -> None:
    await a_log(store.journal, "s", 2)
    await shares.add(a_share("a"), ROW)
    ended = Audited(action="session.unshared", at=NOW)
    assert not await shares.remove(key("t"), ShareId("a"), ended)
    assert not await shares.remove(key("s", "beta"), ShareId("a"), ended)
    assert await shares.remove(key("s"), ShareId("a"), ended)
    assert not await shares.remove(key("s"), ShareId("a"), ended)
    assert await shares.find(token_hash_of("a")) is None
    rows = await store.audit.rows(ACME, after=0, limit=9)
    assert [public(row)["action"] for row in rows] == ["session.shared", "session.unshared"]


async def test_the_shares_of_a_session_are_bounded(
    store: Store, shares: ShareStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("persistence.memory.shares", "persistence.sql.shares"):
        monkeypatch.setattr(f"{module}.SHARES_MAX", 2)
    for session in ("s", "t"):
        await a_log(store.journal, session, 2)
    for name in ("a", "b"):
        await shares.add(a_share(name), ROW)
    with pytest.raises(Limited):
        await shares.add(a_share("c"), ROW)
    await shares.add(a_share("d", "t"), ROW)
    assert len(await store.audit.rows(ACME, after=0, limit=9)) == 3


async def test_nothing_is_shared_of_a_session_that_is_deleted_or_never_was(store: Store, shares: ShareStore) -> None:
    await a_log(store.journal, "s", 2, head=patch(deleted_at=NOW))
    for session in ("s", "nothing"):
        with pytest.raises(NotFound):
            await shares.add(a_share("a", session), ROW)
    assert await shares.find(token_hash_of("a")) is None


async def test_shares_are_purged_with_their_session_and_survive_a_restart(store: Store, bed: Bed) -> None:
    for session in ("s", "t"):
        await a_log(store.journal, session, 2)
        await store.shares.add(a_share(session, session), ROW)
    await store.close()
    again = await bed.open()
    try:
        assert await again.shares.find(token_hash_of("t")) == a_share("t", "t")
        head = await again.journal.head(key("s"))
        assert head is not None
        await again.journal.append(an_append(head, 1, head=patch(deleted_at=NOW)))
        due = Due(deleted_before=UnixMs(NOW + 1))
        assert await purge(again.journal, due, commands_before=UnixMs(0), limit=9) == [key("s")]
        assert await again.shares.find(token_hash_of("s")) is None
        assert await again.shares.find(token_hash_of("t")) is not None
    finally:
        await again.close()
