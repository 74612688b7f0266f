"""One suite for revocations of tokens on every store: kept until they expire, returned in the order of changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sessions.model.audit import INSTALLATION, Audited
from sessions.model.errors import Limited, Unauthorized
from sessions.model.revocations import Revocation, RevocationStore
from sessions.model.types import TenantId, TokenRef, UnixMs
from sessions.store import Store
from tests.support.stores.journals import NOW, Bed
from transport.auth.revocation_cache import RevocationCache

ISSUER = "https://login.example"


@pytest.fixture
def revocations(store: Store) -> RevocationStore:
    return store.revocations


def a_revocation(name: str, *, at: int = NOW, lasts: int = 1000, **fields: Any) -> Revocation:
    values: dict[str, Any] = {"issuer": ISSUER, "kind": "token", "by": "boss", **fields}
    return Revocation(name=name, at=UnixMs(at), expires_at=UnixMs(at + lasts), **values)


async def test_changes_come_in_order_and_once(revocations: RevocationStore) -> None:
    one, two, subject = [
        await revocations.add(each)
        for each in (a_revocation("jti-ünï 🙂"), a_revocation("t2"), a_revocation("t2", kind="subject"))
    ]
    assert [each.version for each in (one, two, subject)] == [1, 2, 3]
    assert await revocations.changes(after=0, limit=10) == [one, two, subject]
    assert await revocations.changes(after=1, limit=1) == [two]
    assert await revocations.changes(after=3, limit=10) == []


async def test_the_same_again_never_shortens_what_is_there(revocations: RevocationStore) -> None:
    first = await revocations.add(a_revocation("s", kind="subject", at=NOW + 5, lasts=1000))
    again = await revocations.add(a_revocation("s", kind="subject", at=NOW, lasts=10, by=""))
    assert (again.at, again.expires_at, again.version) == (first.at, first.expires_at, 2)
    longer = await revocations.add(a_revocation("s", kind="subject", at=NOW + 9, lasts=9000))
    assert (longer.at, longer.expires_at) == (NOW + 9, NOW + 9009)
    assert await revocations.changes(after=0, limit=10) == [longer]


async def test_what_has_expired_is_forgotten_but_never_the_newest(revocations: RevocationStore) -> None:
    await revocations.add(a_revocation("old", lasts=10))
    newest = await revocations.add(a_revocation("new", lasts=10))
    later = await revocations.add(a_revocation("later", at=NOW + 5000))
    assert await revocations.changes(after=0, limit=10) == [newest, later]
    assert later.version == 3


async def test_what_one_gateway_revoked_another_refuses_when_it_has_read(revocations: RevocationStore) -> None:
    one, other = (RevocationCache(revocations, lambda: NOW, lambda: 0.0) for _ in range(2))
    session = TokenRef(ISSUER, "ana", "session-1", NOW)
    for cache in (one, other):
        await cache.refresh()
        cache.check(session)
    audit = Audited(action="user.signed_out", at=NOW, by=None, user="ana", detail={})
    await one.add(a_revocation("session-1"), audit, TenantId("acme"))
    with pytest.raises(Unauthorized):
        one.check(session)
    other.check(session)
    await other.refresh()
    with pytest.raises(Unauthorized):
        other.check(session)


async def test_revocations_are_bounded(revocations: RevocationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("persistence.memory.revocations", "persistence.sql.revocations"):
        monkeypatch.setattr(f"{module}.REVOCATIONS_MAX", 2)
    for name in ("a", "b", "b"):
        await revocations.add(a_revocation(name))
    with pytest.raises(Limited):
        await revocations.add(a_revocation("c"))


async def test_it_is_written_down_with_it_and_survives_a_restart(store: Store, bed: Bed) -> None:
    row = Audited(action="token.revoked", at=NOW, detail={"kind": "token"})
    added = await store.revocations.add(a_revocation("t"), audit=row, tenant=INSTALLATION)
    rows = await store.audit.rows(INSTALLATION, after=0, limit=10)
    assert [msgspec.json.decode(each.body)["action"] for each in rows] == ["token.revoked"]
    await store.close()
    again = await bed.open()
    try:
        assert await again.revocations.changes(after=0, limit=10) == [added]
    finally:
        await again.close()
