"""Erasing an end user: everything goes, whatever dies at whichever step, and nobody else loses anything."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from actors.hosting.services import Stores
from actors.maintenance.erasure import Eraser
from persistence.keys import MemoryKeyStore
from persistence.memory.audit import MemoryAudit
from persistence.memory.end_users import MemoryEndUsers
from persistence.memory.usage import MemoryUsage
from sessions.billing.metering import UsageQuery
from sessions.governance.audit_verify import verify
from sessions.governance.end_user_data import Erasure
from sessions.model import commands as cm
from sessions.model.audit import Audited, public
from sessions.model.types import LOCAL_PRINCIPAL, OPENINGS, Principal, SessionId, SessionKey, TenantId
from tests.support.cluster.replicas import Place, Replica
from tests.support.virtual_time import virtual

LOCAL = TenantId("local")
MARY = Principal(tenant=LOCAL, key_id="mary", user="mary")
BEN = Principal(tenant=LOCAL, key_id="app", user="ben")
OPEN, ENDED, GONE, OTHERS = (SessionKey(LOCAL, SessionId(name)) for name in ("open", "ended", "gone", "others"))
BEGINNINGS = SessionKey(LOCAL, OPENINGS)


class Crash(BaseException):
    """The process dies here."""


class Stumbling:
    """Dies at one call among all that are made of everything that it stands before: before the call, or behind it."""

    def __init__(self, at: int, *, done: bool) -> None:
        self.at = at
        self.done = done
        self.calls = 0

    def before(self, inner: Any) -> Any:
        stumbling = self

        class Proxy:
            def __getattr__(self, name: str) -> Any:
                found = getattr(inner, name)
                return stumbling.wrapped(found) if callable(found) else found

        return Proxy()

    def wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def stumble(*values: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == self.at and not self.done:
                raise Crash
            result = await call(*values, **named)
            if self.calls == self.at:
                raise Crash
            return result

        return stumble


def an_eraser(replica: Replica, keys: MemoryKeyStore, stumbling: Stumbling | None = None) -> Eraser:
    def before(inner: Any) -> Any:
        return inner if stumbling is None else stumbling.before(inner)

    store = SimpleNamespace(journal=before(replica.journal), end_users=before(MemoryEndUsers(replica.journal.database)))
    stores = Stores(store, before(replica.directory), before(keys))
    return Eraser(before(replica.runtime), stores, before(replica.engine), replica.place.clock)


async def populated(place: Place, replica: Replica, keys: MemoryKeyStore) -> None:
    """Mary has a session with an open answer, one that has ended, one that is deleted; Ben has one."""
    for key, who in ((ENDED, MARY), (GONE, MARY), (OTHERS, BEN), (OPEN, MARY)):
        await replica.do(cm.SessionCreate(id=place.name(), session=key.session), who)
        reader = place.read(replica, key)
        said = await replica.do(cm.MessageCreate(id=place.name(), session=key.session, content="my secret"), who)
        await (reader.delta(said.response_id, 3) if key == OPEN else reader.ended(said.response_id))
        await keys.current(key)
    await replica.engine.warm(BEGINNINGS, [1, 2, 3])  # instructions that several sessions had
    await keys.current(BEGINNINGS)
    await replica.do(cm.SessionDelete(id=place.name(), session=GONE.session), MARY)
    assert place.head(OPEN).open and not place.head(ENDED).open


async def request_erasure(place: Place, replica: Replica, user: str = "mary") -> Erasure:
    at = place.now_ms()
    row = Audited(action="user.erasure_asked", at=at, by=LOCAL_PRINCIPAL, user=user)
    erasure = Erasure(tenant=LOCAL, user=user, asked_at=at, asked_by="boss")
    return await MemoryEndUsers(replica.journal.database).request_erasure(erasure, row)


async def check_erased(place: Place, replica: Replica, keys: MemoryKeyStore) -> None:
    for key in (OPEN, ENDED, GONE, BEGINNINGS):
        assert place.store.head(key) is None and replica.engine.place(key).tokens == 0
        assert keys._keys.get(key) is None, "its key is destroyed"
    assert place.store.head(OTHERS) is not None and keys._keys.get(OTHERS) is not None
    assert replica.engine.place(OTHERS).tokens > 0
    rows = await MemoryUsage(replica.journal.database).entries(UsageQuery(tenant=LOCAL), after=0, limit=99)
    assert len(rows) == 4, "bills outlive people"
    assert sorted(str(each.row.principal.user) for each in rows) == ["None", "None", "None", "ben"]
    assert "mary" not in repr(place.store.usage_rows) and "mary" not in repr(place.store.erasures)
    log = MemoryAudit(replica.journal.database)
    told = [public(row) for row in await log.rows(LOCAL, after=0, limit=99)]
    actions = [row["action"] for row in told]
    assert actions.count("user.erased") == 1 and actions.count("session.purged") == 3
    assert actions.count("session.deleted") == 3 and "mary" not in str(told)
    assert (await verify(log, LOCAL)).intact
    done = await MemoryEndUsers(replica.journal.database).find(LOCAL, "mary")
    assert done is not None and done.done_at is not None


def steps_of_an_erasure() -> int:
    """How many calls a whole one makes of everything around it."""
    counted: list[int] = []

    @virtual
    async def count() -> None:
        async with Place() as place:
            replica, keys = await place.replica(), MemoryKeyStore()
            await populated(place, replica, keys)
            await request_erasure(place, replica)
            stumbling = Stumbling(0, done=False)
            await an_eraser(replica, keys, stumbling).sweep()
            counted.append(stumbling.calls)

    count()
    return counted[0]


@virtual
async def test_the_engine_lets_go_of_a_session_once_while_others_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Place() as place:
        one, keys = await place.replica("r1"), MemoryKeyStore()
        await populated(place, one, keys)
        await place.replica("r2")
        await request_erasure(place, one)
        asked: list[SessionKey] = []
        release = one.engine.release

        async def released(key: SessionKey) -> None:
            asked.append(key)
            await release(key)

        monkeypatch.setattr(one.engine, "release", released)
        here = an_eraser(one, keys)
        assert await here.sweep() == 0
        once = list(asked)
        assert [await here.sweep() for _ in range(5)] == [0] * 5
        assert asked == once and {OPEN, ENDED, GONE} <= set(asked)
        assert all(one.engine.place(key).tokens == 0 for key in (OPEN, ENDED, GONE))


def failing(
    patch: pytest.MonkeyPatch, replica: Replica, keys: MemoryKeyStore, part: str, failure: Exception
) -> list[SessionKey]:
    """The first of Mary's that is asked for fails from now on. What was done for her others comes into the list."""
    owner: Any = {"execute": replica.runtime, "release": replica.engine, "destroy": keys}[part]
    call, bad, done = getattr(owner, part), list[SessionKey](), list[SessionKey]()

    async def asked(*values: Any) -> Any:
        key = values[0].key if part == "execute" else values[0]
        if key != OTHERS:
            if key in bad or not bad:
                bad.append(key)
                raise failure
            done.append(key)
        return await call(*values)

    patch.setattr(owner, part, asked)
    return done


async def check_erased_of_two(place: Place, replica: Replica, keys: MemoryKeyStore) -> None:
    for key in (OPEN, ENDED, GONE):
        assert place.store.head(key) is None and keys._keys.get(key) is None
    assert place.store.head(OTHERS) is not None


@virtual
async def test_asking_again_changes_nothing_and_what_comes_later_stays() -> None:
    async with Place() as place:
        replica, keys = await place.replica(), MemoryKeyStore()
        await populated(place, replica, keys)
        first = await request_erasure(place, replica)
        assert await request_erasure(place, replica) == first
        await an_eraser(replica, keys).sweep()
        await replica.do(cm.SessionCreate(id=place.name(), session=SessionId("new")), MARY)
        assert await an_eraser(replica, keys).sweep() == 0
        assert place.store.head(SessionKey(LOCAL, SessionId("new"))) is not None
        again = await request_erasure(place, replica)
        assert again.asked_at >= first.asked_at and again.done_at is None, "a new erasure of what came later"
        assert await an_eraser(replica, keys).sweep() == 1
        assert place.store.head(SessionKey(LOCAL, SessionId("new"))) is None
