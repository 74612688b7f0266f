"""The cache of revocations: what it refuses, what ends by it, and when it trusts nothing."""

from __future__ import annotations

import pytest

from persistence.memory.database import MemoryDatabase
from persistence.memory.revocations import MemoryRevocations
from sessions.model.audit import INSTALLATION
from sessions.model.errors import Unauthorized
from sessions.model.revocations import Revocation, make_revocation, revocation_audit
from sessions.model.types import Principal, TenantId, TokenRef, UnixMs
from transport.auth.authenticator import Authenticator, Issuance
from transport.auth.revocation_cache import RevocationCache

ISSUER = "https://login.example"
ANA = TokenRef(ISSUER, "ana", "t1", UnixMs(1000))


class Time:
    def __init__(self) -> None:
        self.s = 10.0

    def clock(self) -> float:
        return self.s

    def now_ms(self) -> UnixMs:
        return UnixMs(round(self.s * 1000))


def revocation(
    *, subject: str | None = None, token_id: str | None = None, at: int = 5000, until: int = 99_000
) -> Revocation:
    return make_revocation(ISSUER, subject=subject, token_id=token_id, at=UnixMs(at), expires_at=until)


async def test_another_process_follows_and_ends_what_is_open() -> None:
    time, database = Time(), MemoryDatabase()
    here, there = (RevocationCache(MemoryRevocations(database), time.now_ms, time.clock) for _ in range(2))
    await there.refresh()
    access = Authenticator({}, clock=time.clock, now_ms=time.now_ms, issued=Issuance(revocations=there))
    ended: list[str] = []
    for name, token in (("first", ANA), ("later", TokenRef(ISSUER, "ana", "t2", UnixMs(6000)))):
        principal = Principal(tenant=TenantId("acme"), key_id=f"jwt:{ISSUER}", user="ana", token=token)
        access.verify(principal)
        access._watched.setdefault("jwt", {})[name] = (principal, lambda error, name=name: ended.append(name))  # type: ignore[misc]
    row = revocation(subject="ana")
    await here.add(row, revocation_audit(row, None), INSTALLATION)
    with pytest.raises(Unauthorized):
        here.check(ANA)
    there.check(ANA)
    await there.refresh()
    assert ended == ["first"]
    with pytest.raises(Unauthorized):
        there.check(ANA)
    there.check(TokenRef(ISSUER, "ana", "t2", UnixMs(6000)))
    there.check(TokenRef("https://other.example", "ana", "t1", UnixMs(1000)))
    row = revocation(token_id="t2")
    await there.add(row, revocation_audit(row, None), INSTALLATION)
    assert ended == ["first", "later"]
    assert [each.name for each in there.all()] == ["t2", "ana"]


async def test_what_has_expired_is_forgotten() -> None:
    time, database = Time(), MemoryDatabase()
    cache = RevocationCache(MemoryRevocations(database), time.now_ms, time.clock)
    row = revocation(token_id="t1", until=20_000)
    await cache.add(row, revocation_audit(row, None), INSTALLATION)
    time.s = 21.0
    await cache.refresh()
    assert cache.all() == []
    cache.check(ANA)


async def test_a_restored_backup_brings_no_token_back() -> None:
    time, database, incarnation = Time(), MemoryDatabase(), ["one"]
    cache = RevocationCache(MemoryRevocations(database), time.now_ms, time.clock, lambda: incarnation[0])
    row = revocation(token_id="t1")
    await cache.add(row, revocation_audit(row, None), INSTALLATION)
    database.revocations.clear()
    incarnation[0] = "two"
    await cache.refresh()
    with pytest.raises(Unauthorized):
        cache.check(ANA)
