"""One suite for end users' data on every journal: what is found of them, and erasures that are remembered."""

from __future__ import annotations

import msgspec
import pytest

from persistence.sql import end_users
from sessions.billing.metering import UsageQuery
from sessions.governance.audit_verify import verify
from sessions.governance.end_user_data import EndUserStore, Erasure
from sessions.model.api_keys import ApiKeyRequest, make_api_key
from sessions.model.audit import Audited, public
from sessions.model.errors import Limited
from sessions.model.journal_types import Due
from sessions.model.memories import MEMORIES_MAX, MemoryId, UserMemory
from sessions.model.types import INTEGER_MAX, TenantId, UnixMs
from sessions.ports import Journal
from sessions.store import Store
from tests.support.stores.journals import ACME, NOW, Bed, a_log, a_usage, key, patch, purge, reopened

BETA = TenantId("beta")


@pytest.fixture
def personal(store: Store) -> EndUserStore:
    return store.end_users


def erasure(at: int = NOW, user: str = "ü") -> Erasure:
    return Erasure(tenant=ACME, user=user, asked_at=UnixMs(at), asked_by="boss")


def a_row(user: str = "ü", at: int = NOW) -> Audited:
    return Audited(action="user.erasure_asked", at=UnixMs(at), user=user)


async def test_every_session_of_a_user_is_found_and_no_other(journal: Journal, personal: EndUserStore) -> None:
    for name, fields in (("a", {}), ("b", {"deleted_at": NOW}), ("c", {"listed": False}), ("d", {"open": True})):
        await a_log(journal, name, 1, head=patch(user="ü", **fields))
    await a_log(journal, "other", 1, head=patch(user="x"))
    await a_log(journal, "nobodys", 1)
    await a_log(journal, "a", 1, tenant="beta", head=patch(user="ü"))
    found = await personal.heads(ACME, "ü", after=None, limit=9)
    assert [head.key for head in found] == [key(name) for name in "abcd"]
    assert found[1].deleted_at == NOW and not found[2].listed and found[3].open
    assert [head.key.session for head in await personal.heads(ACME, "ü", after=key("b"), limit=1)] == ["c"]
    assert await personal.heads(ACME, "", after=None, limit=9) == []
    due = Due(deleted_before=UnixMs(INTEGER_MAX), tenant=ACME, user="ü")
    assert await purge(journal, due, commands_before=UnixMs(0), limit=9) == [key("b")]


async def test_an_erasure_is_remembered_until_it_is_done(bed: Bed, store: Store, personal: EndUserStore) -> None:
    asked = await personal.request_erasure(erasure(), a_row())
    assert asked == erasure() and await personal.pending(limit=9) == [asked]
    assert await personal.request_erasure(erasure(NOW + 5), a_row(at=NOW + 5)) == asked, "it is under way"
    assert await personal.find(ACME, "ü") == asked
    assert await personal.find(BETA, "ü") is None and await personal.find(ACME, "x") is None
    await personal.released(asked, "r1")
    told = await personal.released(asked, "r2")
    assert told.released == ("r1", "r2") and await personal.released(asked, "r1") == told
    async with reopened(bed, store) as again:
        (pending,) = await again.end_users.pending(limit=9)
        assert pending == told
        done = Audited(action="user.erased", at=UnixMs(NOW + 9), user="ü")
        await again.end_users.finish(pending, done)
        await again.end_users.finish(pending, done)
        assert await again.end_users.pending(limit=9) == []
        found = await again.end_users.find(ACME, "ü")
        assert found is not None and found.done_at == NOW + 9 and "ü" not in found.user
        rows = [public(row) for row in await again.audit.rows(ACME, after=0, limit=9)]
        assert [row["action"] for row in rows] == ["user.erasure_asked", "user.erased"]
        assert (await verify(again.audit, ACME)).intact
        later = await again.end_users.request_erasure(erasure(NOW + 20), a_row(at=NOW + 20))
        assert later.done_at is None and (await again.end_users.find(ACME, "ü")) == later


async def test_what_remains_of_a_user_has_no_name(
    store: Store, personal: EndUserStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_users, "USAGE_ROWS", 2)
    own = a_usage("r2")
    own = msgspec.structs.replace(own, principal=msgspec.structs.replace(own.principal, key_id="ü"))
    other = a_usage("r3")
    other = msgspec.structs.replace(other, principal=msgspec.structs.replace(other.principal, user="x"))
    await a_log(store.journal, "s", 1, usage=(a_usage("r1"), own, other))
    keys = store.api_keys
    names = {"tenant": "acme", "name": "the phone of ü"}
    made = [
        await keys.add(make_api_key(ApiKeyRequest(**names, user=user), bytes([n]) * 40, now=NOW)[0])  # type: ignore[arg-type]
        for n, user in enumerate(("ü", "ü", "x"))
    ]
    await keys.revoke(made[1].id, at=UnixMs(NOW + 1))
    asked = await personal.request_erasure(erasure(), a_row())
    await personal.finish(asked, Audited(action="user.erased", at=UnixMs(NOW + 9), user="ü"))
    rows = await store.usage.entries(UsageQuery(tenant=ACME), after=0, limit=9)
    who = {entry.row.response_id: (entry.row.principal.key_id, entry.row.principal.user) for entry in rows}
    assert who == {"r1": ("k1", None), "r2": ("", None), "r3": ("k1", "x")}
    assert sum(entry.row.usage.output_tokens for entry in rows) == 21, "what was used stays"
    changed = {each.id: each for each in await keys.changes(after=4, limit=9)}
    assert set(changed) == {made[0].id, made[1].id}, "every gateway hears of it"
    assert changed[made[0].id].revoked_at == NOW + 9 and changed[made[1].id].revoked_at == NOW + 1
    assert all("ü" not in repr(each) for each in changed.values())
    assert len({each.version for each in changed.values()}) == 2


def a_memory(name: str, *, tenant: TenantId = ACME, user: str = "ü", at: int = NOW) -> UserMemory:
    about = {"created_at": UnixMs(at), "updated_at": UnixMs(at)}
    return UserMemory(id=MemoryId(name), tenant=tenant, user=user, text=f"text of {name}", **about)


async def test_memories_are_kept_changed_and_removed_for_their_user_alone(personal: EndUserStore) -> None:
    for memory in (a_memory("b", at=NOW + 1), a_memory("a"), a_memory("c", user="x"), a_memory("d", tenant=BETA)):
        await personal.add_memory(memory)
    assert [each.id for each in await personal.memories(ACME, "ü")] == ["a", "b"]
    assert (await personal.memories(ACME, "ü"))[0] == a_memory("a")
    changed = await personal.change_memory(ACME, "ü", MemoryId("a"), text="other words", at=UnixMs(NOW + 9))
    assert changed == msgspec.structs.replace(a_memory("a"), text="other words", updated_at=NOW + 9)
    assert (await personal.memories(ACME, "ü"))[0] == changed
    for tenant, user, name in ((ACME, "x", "a"), (BETA, "ü", "a"), (ACME, "ü", "c")):
        assert await personal.change_memory(tenant, user, MemoryId(name), text="taken", at=UnixMs(NOW)) is None
        assert not await personal.remove_memory(tenant, user, MemoryId(name))
    assert await personal.remove_memory(ACME, "ü", MemoryId("b"))
    assert [each.id for each in await personal.memories(ACME, "ü")] == ["a"]
    for number in range(MEMORIES_MAX - 1):
        await personal.add_memory(a_memory(f"n{number}"))
    with pytest.raises(Limited):
        await personal.add_memory(a_memory("one too many"))


async def test_an_erasure_takes_the_memories_that_were_there(bed: Bed, personal: EndUserStore) -> None:
    for memory in (a_memory("old"), a_memory("other", user="x")):
        await personal.add_memory(memory)
    await personal.request_erasure(erasure(), a_row())
    assert await personal.memories(ACME, "ü") == [], "no session begins with them any more"
    for memory in (a_memory("late"), a_memory("later", at=NOW + 5)):
        await personal.add_memory(memory)
    await personal.finish(erasure(), a_row(at=NOW + 9))
    assert [each.id for each in await personal.memories(ACME, "ü")] == ["later"]
    assert [each.id for each in await personal.memories(ACME, "x")] == ["other"]
