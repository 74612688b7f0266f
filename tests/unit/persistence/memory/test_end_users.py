"""End users in memory: whose heads are whose, and what an erasure leaves."""

from __future__ import annotations

from persistence.memory.store import MemoryStore
from sessions.billing.metering import UsageQuery
from sessions.governance.end_user_data import Erasure
from sessions.model.api_keys import ApiKeyRequest, make_api_key
from sessions.model.types import UnixMs
from tests.support.stores.audit_tables import a_row
from tests.support.stores.journals import ACME, NOW, a_log, a_usage, key, patch

ERASURE = Erasure(tenant=ACME, user="ü", asked_at=NOW, asked_by="boss")


async def test_heads_of_a_user_come_in_key_order_page_by_page(store: MemoryStore) -> None:
    for name, user in (("c", "ü"), ("a", "ü"), ("b", "x"), ("d", "ü")):
        await a_log(store.journal, name, 1, head=patch(user=user))
    found = await store.end_users.heads(ACME, "ü", after=None, limit=2)
    assert [head.key.session for head in found] == ["a", "c"]
    found = await store.end_users.heads(ACME, "ü", after=key("c"), limit=2)
    assert [head.key.session for head in found] == ["d"]


async def test_an_erasure_is_begun_once_and_finished_once(store: MemoryStore) -> None:
    users = store.end_users
    await a_log(store.journal, "s", 1, usage=(a_usage("r"),))
    added, _ = make_api_key(ApiKeyRequest(tenant=ACME, user="ü"), bytes(40), now=NOW)
    await store.api_keys.add(added)
    assert await users.request_erasure(ERASURE, a_row(1)) == ERASURE == await users.find(ACME, "ü")
    assert await users.request_erasure(Erasure(tenant=ACME, user="ü", asked_at=UnixMs(NOW + 5), asked_by="b"), a_row(2))
    assert await users.pending(limit=9) == [ERASURE] and await users.pending(limit=0) == []
    released = await users.released(ERASURE, "r1")
    assert released.released == ("r1",) and await users.released(ERASURE, "r1") == released
    for at in (7, 8):
        await users.finish(released, a_row(at))
    done = await users.find(ACME, "ü")
    assert done is not None and done.done_at == NOW + 7 and done.user == store.audit.sealer.pseudonym(ACME, "ü")
    assert await users.pending(limit=9) == [] and await users.released(ERASURE, "r2") == ERASURE
    (entry,) = await store.usage.entries(UsageQuery(tenant=ACME), after=0, limit=9)
    assert entry.row.principal.user is None
    (ended,) = await store.api_keys.changes(after=0, limit=9)
    assert (ended.user, ended.revoked_at, ended.version) == (done.user, NOW + 7, 2)
    assert len(await store.audit.rows(ACME, after=0, limit=9)) == 2, "one for its beginning, one for its end"
