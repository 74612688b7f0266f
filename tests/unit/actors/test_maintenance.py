"""Sweeps, erasure, KV of sessions that are gone, and what operators see."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from actors.hosting.recovery_gate import UNREAD
from actors.hosting.runtime import RuntimeLimits
from actors.hosting.services import Stores
from actors.maintenance.erasure import Eraser
from actors.maintenance.kv_cleanup import PAGE, KVCleanup
from actors.maintenance.sweeps import Sweeps
from actors.peer.frames import Measure
from inference.simulated import SimulatedOptions
from persistence.keys import MemoryKeyStore
from persistence.memory.store import MemoryStore
from persistence.sql.audit import SqlAudit
from persistence.sql.usage import SqlUsage
from sessions.billing.metering import UsageQuery
from sessions.governance import retention
from sessions.governance.audit_verify import verify
from sessions.governance.end_user_data import Erasure
from sessions.governance.retention import Retention, RetentionPeriods
from sessions.load_history import STEP_S
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.audit import INSTALLATION, Audited, public
from sessions.model.errors import Internal, Unavailable
from sessions.model.reviews import ReviewId
from sessions.model.types import LOCAL_PRINCIPAL, OPENINGS, Principal, SessionId, SessionKey, TenantId, UnixMs
from tests.support.cluster.harness import cluster, until
from tests.support.cluster.replicas import KEY, Place, Replica
from tests.support.cluster.steps import answering
from tests.support.cluster.sweeps import sweeps_of
from tests.support.stores.review_cases import a_case
from tests.support.stores.tables import head_of, lose_record, put_case, usage_in
from tests.support.virtual_time import advance, settled, virtual

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

    store = SimpleNamespace(
        journal=before(replica.journal), end_users=before(MemoryStore(replica.journal.database).end_users)
    )
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
    return await MemoryStore(replica.journal.database).end_users.request_erasure(erasure, row)


async def check_erased(place: Place, replica: Replica, keys: MemoryKeyStore) -> None:
    for key in (OPEN, ENDED, GONE, BEGINNINGS):
        assert head_of(place.store, key) is None and replica.engine.place(key).tokens == 0
        assert keys._keys.get(key) is None, "its key is destroyed"
    assert head_of(place.store, OTHERS) is not None and keys._keys.get(OTHERS) is not None
    assert replica.engine.place(OTHERS).tokens > 0
    rows = await SqlUsage(replica.journal.database).entries(UsageQuery(tenant=LOCAL), after=0, limit=99)
    assert len(rows) == 4, "bills outlive people"
    assert sorted(str(each.row.principal.user) for each in rows) == ["None", "None", "None", "ben"]
    assert "mary" not in repr(usage_in(place.store))
    assert "mary" not in repr(place.store.query("SELECT end_user FROM erasures"))
    log = SqlAudit(replica.journal.database)
    told = [public(row) for row in await log.rows(LOCAL, after=0, limit=99)]
    actions = [row["action"] for row in told]
    assert actions.count("user.erased") == 1 and actions.count("session.purged") == 3
    assert actions.count("session.deleted") == 3 and "mary" not in str(told)
    assert (await verify(log, LOCAL)).intact
    done = await MemoryStore(replica.journal.database).end_users.find(LOCAL, "mary")
    assert done is not None and done.done_at is not None


@virtual
async def test_what_cannot_be_read_any_more_is_erased_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Place() as place:
        replica, keys = await place.replica(), MemoryKeyStore()
        await populated(place, replica, keys)
        await replica.runtime.passivate(ENDED)
        load = replica.journal.load

        async def damaged(key: SessionKey, **more: Any) -> Any:
            if key == ENDED:
                raise Internal("body_unreadable", "A stored record cannot be read.")
            return await load(key, **more)

        monkeypatch.setattr(replica.journal, "load", damaged)
        await request_erasure(place, replica)
        assert await an_eraser(replica, keys).sweep() == 1
        await check_erased(place, replica, keys)


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


@pytest.mark.parametrize("done", [False, True], ids=["before", "behind"])
def test_a_crash_at_any_step_is_made_up_for(done: bool) -> None:
    steps = steps_of_an_erasure()
    assert steps >= 12

    @virtual
    async def crash_at(step: int) -> None:
        async with Place() as place:
            replica, keys = await place.replica(), MemoryKeyStore()
            await populated(place, replica, keys)
            await request_erasure(place, replica)
            with pytest.raises(Crash):
                await an_eraser(replica, keys, Stumbling(step, done=done)).sweep()
            ended = await an_eraser(replica, keys).sweep()
            assert ended == (0 if done and step == steps else 1)
            await check_erased(place, replica, keys)

    for step in range(1, steps + 1):
        crash_at(step)


@virtual
async def test_every_live_replica_does_its_part() -> None:
    """One owns a session of hers and the other has the rest: neither finishes before both have let go of the KV."""
    async with Place() as place:
        one, keys = await place.replica("r1"), MemoryKeyStore()
        await populated(place, one, keys)
        two = await place.replica("r2")
        theirs = SessionKey(LOCAL, SessionId("theirs"))
        await two.do(cm.SessionCreate(id=place.name(), session=theirs.session), MARY)
        await request_erasure(place, one)
        here, there = an_eraser(one, keys), an_eraser(two, keys)
        assert await here.sweep() == 0 and head_of(place.store, theirs) is not None
        assert place.head(theirs).deleted_at is None, "it is the other's to delete"
        assert await there.sweep() == 0 and await here.sweep() == 1
        assert head_of(place.store, theirs) is None
        for key in (OPEN, ENDED, GONE):
            assert head_of(place.store, key) is None and keys._keys.get(key) is None
        assert head_of(place.store, OTHERS) is not None


@pytest.mark.parametrize("failure", [AssertionError("the log ends early"), Unavailable("store_away", "away")], ids=repr)
@pytest.mark.parametrize("part", ["execute", "release", "destroy"])
@virtual
async def test_a_session_that_fails_keeps_no_other_one_and_no_other_erasure(part: str, failure: Exception) -> None:
    """One of Mary's cannot be erased for now: the rest of hers and all of Ben's go on, and she is not called erased."""
    async with Place() as place:
        replica, keys = await place.replica(), MemoryKeyStore()
        await populated(place, replica, keys)
        for user in ("mary", "ben"):
            await request_erasure(place, replica, user)
            await advance(1.0)
        with pytest.MonkeyPatch.context() as patch:
            done = failing(patch, replica, keys, part, failure)
            assert await an_eraser(replica, keys).sweep() == 1
            assert done, "others of hers were seen to after the one that failed"
        assert head_of(place.store, OTHERS) is None and head_of(place.store, OPEN) is not None
        mary = await MemoryStore(replica.journal.database).end_users.find(LOCAL, "mary")
        assert mary is not None and mary.done_at is None
        assert await an_eraser(replica, keys).sweep() == 1
        assert all(head_of(place.store, key) is None and keys._keys.get(key) is None for key in (OPEN, ENDED, GONE))


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


@virtual
async def test_what_was_deleted_while_the_others_were_purged_is_let_go_of_until_it_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Place() as place:
        replica, keys = await place.replica(), MemoryKeyStore()
        await populated(place, replica, keys)
        await request_erasure(place, replica)
        later = SessionKey(LOCAL, SessionId("later"))
        purge, destroy, calls = replica.journal.purge, keys.destroy, list[str]()

        async def purged(*values: Any, **named: Any) -> Any:
            if not calls:
                calls.append("purge")
                await replica.do(cm.SessionCreate(id=place.name(), session=later.session), MARY)
                await keys.current(later)
                await replica.do(cm.SessionDelete(id=place.name(), session=later.session), MARY)
            return await purge(*values, **named)

        async def destroyed(key: SessionKey) -> None:
            if key == later and "destroy" not in calls:
                calls.append("destroy")
                raise Unavailable("keys_unavailable", "The key store is away.")
            await destroy(key)

        monkeypatch.setattr(replica.journal, "purge", purged)
        monkeypatch.setattr(keys, "destroy", destroyed)
        eraser = an_eraser(replica, keys)
        assert await eraser.sweep() == 0 and keys._keys.get(later) is not None
        assert head_of(place.store, later) is not None, "its rows say that there is a key to destroy"
        assert await eraser.sweep() == 1
        assert keys._keys.get(later) is None and head_of(place.store, later) is None


@virtual
async def test_the_load_is_sampled_beside_the_work_and_measured_when_it_is_requested() -> None:
    async with cluster(replicas=1) as made:
        key, _ = await answering(made, tokens=60)
        await made.at_rest(key)
        replica = made.replicas["r1"].replica
        await advance(3 * STEP_S)
        survey = replica.endpoint.survey
        assert survey is not None
        measured = survey.measure(Measure(7, 0, STEP_S))
        assert (measured.id, measured.sessions) == (7, 1)
        assert sum(measured.totals.ttft) == 1 and sum(measured.totals.ended.values()) == 1
        assert len(measured.samples) >= 3
        assert sum(sum(each.ttft) for each in measured.samples) == 1
        assert sum(each.decoded_tokens for each in measured.samples) >= 60
        assert survey.measure(Measure(8)).samples == ()
        assert survey.measure(Measure(9, measured.samples[-1].at, STEP_S)).samples == ()


@contextlib.asynccontextmanager
async def running(sweeps: Sweeps) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(sweeps.run())
    yield task
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def kv_cleanup_of(replica: Replica) -> KVCleanup:
    return KVCleanup(replica.runtime, replica.journal, replica.engine)


@virtual
async def test_many_are_looked_at_page_by_page_and_a_journal_that_is_away_costs_a_page() -> None:
    async with Place() as place:
        replica = await place.replica()
        keys = [SessionKey(TenantId("local"), SessionId(f"gone{number}")) for number in range(2 * PAGE + 5)]
        for key in keys:  # as after a purge: the journal knows none of them
            await replica.engine.warm(key, [1, 2, 3])
        sweeps = kv_cleanup_of(replica)
        replica.faults.away("head")
        with pytest.raises(Unavailable):
            await sweeps.sweep()
        replica.faults.back()
        assert len(replica.engine.held_sessions()) == len(keys), "without the journal's word nothing goes"
        assert [await sweeps.sweep() for _ in range(4)] == [PAGE, 5, PAGE, 0]
        assert not replica.engine.held_sessions()


@pytest.mark.parametrize(
    "trouble", [OSError(errno.EROFS, "Read-only file system"), Unavailable("journal_unavailable", "It is away.")]
)
@virtual
async def test_a_sweep_that_fails_is_tried_again_at_the_next_beat(trouble: Exception) -> None:
    async with Place() as place:
        replica = await place.replica()
        sweeps = sweeps_of(replica, sweep_s=1.0)
        tried = 0

        async def recover() -> int:
            nonlocal tried
            tried += 1
            raise trouble

        sweeps.recover = recover  # type: ignore[method-assign]
        async with running(sweeps) as task:
            await advance(3.5)
            assert tried == 4 and not task.done()


ACME, BETA, GAMMA = TenantId("acme"), TenantId("beta"), TenantId("gamma")
UNIT_S = 60.0
# Minutes, where a file has to say days and rows go by hours: the replica beside the sweeps ticks through all of them.
UNIT_DAYS = UNIT_S / 86_400
SAID = Retention(
    default=RetentionPeriods(audit_days=9 * UNIT_DAYS),
    tenants={"acme": RetentionPeriods(audit_days=3 * UNIT_DAYS), "beta": RetentionPeriods()},
)


@virtual
async def test_the_periodic_purge_trims_each_chain_as_its_retention_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "HOUR_MS", int(UNIT_S * 1000))
    async with Place() as place:
        replica = await place.replica()
        audit = SqlAudit(replica.journal.database)
        sweeps = sweeps_of(replica, retention=SAID, sweep_s=UNIT_S / 2, purge_every_s=UNIT_S)
        chains = (INSTALLATION, ACME, BETA, GAMMA)
        for chain in chains:
            await audit.record(chain, [Audited(action="policy.loaded", at=place.now_ms()) for _ in range(3)])

        async def trimmed() -> dict[str, int]:
            found = {chain: await verify(audit, chain) for chain in chains}
            assert all(each.intact for each in found.values())
            return {chain: each.trimmed for chain, each in found.items()}

        async with running(sweeps):
            await advance(2 * UNIT_S)
            assert set((await trimmed()).values()) == {0}, "nothing is old enough"
            await advance(3.5 * UNIT_S)
            assert await trimmed() == {INSTALLATION: 0, ACME: 3, BETA: 0, GAMMA: 0}
            await advance(6 * UNIT_S)
            assert await trimmed() == {INSTALLATION: 3, ACME: 3, BETA: 0, GAMMA: 3}
            head = await audit.head(ACME)
            assert head is not None and head.seq == 4, "one row about it, which is not trimmed for itself"


OPTIONS = SimulatedOptions(answer_tokens_mean=60)
LEASE_S = 7.0


def decided(place: Place, key: SessionKey, at: int) -> ReviewId:
    """A case of the session that was decided, and that its log does not know of."""
    decision: dict[str, Any] = {"state": "decided", "outcome": "upheld", "decided_at": UnixMs(at), "decisions": 1}
    case = a_case(f"rev_{key.session}", key, told=False, **decision)
    put_case(place.store, case)
    return case.id


@pytest.mark.parametrize("trouble", ["unfolded", "refused"])
@virtual
async def test_a_case_that_cannot_be_reported_holds_up_no_other(trouble: str) -> None:
    async with Place(OPTIONS) as place:
        first = await place.replica("r1")
        keys = [SessionKey(TenantId("local"), SessionId(name)) for name in ("a", "b")]
        for key in keys:
            await first.do(cm.SessionCreate(id=place.name(), session=key.session))
            for _ in range(3):
                said = cm.MessageCreate(id=place.name(), session=key.session, content="x", respond=False)
                await first.do(said)
        first.crash()
        await advance(LEASE_S)
        _, good = (decided(place, key, at) for at, key in enumerate(keys, 1))
        heir = await place.replica("r2")
        if trouble == "unfolded":
            lose_record(place.store, keys[0], 3)
        else:
            heir.faults.next("grant", "refused")
        assert await sweeps_of(heir).deliver_reviews() == 1
        assert place.store.query("SELECT id FROM reviews WHERE told = 1") == [(good,)]
        assert isinstance(place.records(keys[1])[-1].event, ev.ReviewDecided)


@virtual
async def test_a_slow_recovery_keeps_no_other_sweep_from_its_work() -> None:
    async with Place(OPTIONS) as place:
        first = await place.replica("r1")
        await first.create()
        await first.say()
        first.crash()
        await advance(LEASE_S)
        heir = await place.replica("r2", limits=RuntimeLimits(recoveries_max=1, idle_s=10.0))
        await heir.runtime._gate.enter(UNREAD)
        idle = SessionKey(TenantId("local"), SessionId("idle"))
        await heir.do(cm.SessionCreate(id=place.name(), session=idle.session))
        async with running(sweeps_of(heir)):
            await advance(20.0)
            assert heir.runtime._gate.waiting == 1 and place.head().open, "the recovery waits"
            assert heir.runtime.actor(idle) is None, "and the idle leave all the same"
            heir.runtime._gate.leave()
            await until(lambda: not place.head().open)


@virtual
async def test_a_turn_that_stands_in_our_name_and_is_not_here_is_an_orphan() -> None:
    """The entry could not be given back: with a living lease it keeps everybody else away."""
    async with Place(OPTIONS) as place:
        replica, other = await place.replica("r1"), await place.replica("r2")
        await replica.create()
        answer = await replica.say()
        assert await sweeps_of(replica).recover() == 0, "it is here"
        replica.faults.next("release", "refused")
        await replica.runtime.passivate(KEY)
        await settled()
        assert place.head().open and not replica.runtime.present(KEY)
        assert await replica.directory.locate(KEY) is not None
        assert await sweeps_of(other).recover() == 0, "it is not theirs"
        assert await sweeps_of(replica).recover() == 1
        await until(lambda: bool(place.terminals(answer.response_id)))
        await replica.runtime.ownership.retry_releases()
        assert await replica.directory.locate(KEY) == replica.runtime.ownership.owner(KEY)


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
        assert head_of(place.store, SessionKey(LOCAL, SessionId("new"))) is not None
        await advance(1.0)
        again = await request_erasure(place, replica)
        assert again.asked_at >= first.asked_at and again.done_at is None, "a new erasure of what came later"
        assert await an_eraser(replica, keys).sweep() == 1
        assert head_of(place.store, SessionKey(LOCAL, SessionId("new"))) is None
