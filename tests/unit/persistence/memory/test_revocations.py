"""Revocations in memory: versions, what is forgotten, and what is audited."""

from __future__ import annotations

import pytest

from persistence.memory.store import MemoryStore
from sessions.model.errors import Limited
from sessions.model.revocations import Revocation
from sessions.model.types import UnixMs
from tests.support.stores.audit_tables import a_row
from tests.support.stores.journals import ACME, NOW


def a_revocation(name: str, *, at: int = NOW, lasts: int = 10) -> Revocation:
    return Revocation(issuer="i", kind="token", name=name, at=UnixMs(at), expires_at=UnixMs(at + lasts))


async def test_expired_ones_make_room_but_the_newest_stays(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.memory.revocations.REVOCATIONS_MAX", 2)
    await store.revocations.add(a_revocation("a"))
    newest = await store.revocations.add(a_revocation("b"))
    with pytest.raises(Limited):
        await store.revocations.add(a_revocation("c"), audit=a_row(1), tenant=ACME)
    later = await store.revocations.add(a_revocation("c", at=NOW + 100), audit=a_row(2), tenant=ACME)
    assert later.version == 3
    assert await store.revocations.changes(after=0, limit=9) == [newest, later]
    assert len(await store.audit.rows(ACME, after=0, limit=9)) == 1


async def test_one_that_expired_and_comes_again_is_the_same_one(store: MemoryStore) -> None:
    await store.revocations.add(a_revocation("a"))
    await store.revocations.add(a_revocation("b"))
    again = await store.revocations.add(a_revocation("a", at=NOW + 100))
    assert (again.version, again.expires_at) == (3, NOW + 110)
    assert [each.name for each in await store.revocations.changes(after=2, limit=9)] == ["a"]
