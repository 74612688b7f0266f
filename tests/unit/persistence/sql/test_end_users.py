"""End users in SQL: an erasure is one row that is begun, released and finished."""

from __future__ import annotations

import msgspec

from persistence.sqlite.store import SqliteStore
from sessions.governance.end_user_data import Erasure
from sessions.model.types import UnixMs
from tests.support.stores.audit_tables import a_row
from tests.support.stores.journals import ACME, NOW

ERASURE = Erasure(tenant=ACME, user="ü", asked_at=NOW, asked_by="boss")


async def test_what_is_under_way_is_not_begun_again(store: SqliteStore) -> None:
    later = msgspec.structs.replace(ERASURE, asked_at=UnixMs(NOW + 5))
    for asked in (ERASURE, later):
        assert await store.end_users.request_erasure(asked, a_row(1)) == ERASURE
    assert await store.end_users.pending(limit=9) == [ERASURE] and await store.end_users.pending(limit=0) == []
    assert len(await store.audit.rows(ACME, after=0, limit=9)) == 1


async def test_each_replica_is_remembered_once(store: SqliteStore) -> None:
    await store.end_users.request_erasure(ERASURE, a_row(1))
    for replica in ("r1", "r2", "r1"):
        released = await store.end_users.released(ERASURE, replica)
    assert released.released == ("r1", "r2") and await store.end_users.find(ACME, "ü") == released
    other = msgspec.structs.replace(ERASURE, user="x")
    assert await store.end_users.released(other, "r1") == other, "there is none"


async def test_the_newest_is_found_by_its_name_and_by_its_pseudonym(store: SqliteStore) -> None:
    await store.end_users.request_erasure(ERASURE, a_row(1))
    for at in (7, 8):
        await store.end_users.finish(ERASURE, a_row(at))
    done = await store.end_users.find(ACME, "ü")
    assert done is not None and (done.user, done.done_at) == (store.audit.sealer.pseudonym(ACME, "ü"), NOW + 7)
    later = msgspec.structs.replace(ERASURE, asked_at=UnixMs(NOW + 9))
    await store.end_users.request_erasure(later, a_row(9))
    assert await store.end_users.find(ACME, "ü") == later and await store.end_users.find(ACME, "x") is None
    assert len(await store.audit.rows(ACME, after=0, limit=9)) == 3, "finished once"
