"""Members, placement, versions and pools of a cluster, and who had a session before."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from actors.cluster.compatibility import check_compatibility
from actors.cluster.membership import RENEW_S, Change, Membership
from actors.cluster.placement import BOUND, BoundedRendezvous, session_load_of
from actors.cluster.pool_states import pool_states
from actors.cluster.previous_owner import PreviousOwnerQuery
from actors.cluster.rendezvous import FLAT_MAX, RendezvousTree, ranking
from actors.cluster.versions import common_protocol, protocol_mismatch
from actors.directory import LEASE_TTL_S, PARTITIONS
from actors.directory.memory import MemoryDirectory
from actors.directory.rules import DirectoryState
from actors.hosting.ownership import owner_label
from actors.peer.links import LinkDown, Links, PeerLink
from inference.simulated import SimulatedEngine, SimulatedOptions
from sessions.model.errors import BadInput, Conflict, OutcomeUnknown, Unavailable
from sessions.model.generation import EngineInfo
from sessions.model.journal_types import Head
from sessions.model.types import ActivationId, Epoch, ReplicaId, SessionId, SessionKey, TenantId, UnixMs
from sessions.ports import Member, Owner, View
from tests.support.virtual_time import advance, virtual


class Weather:
    """`calls` remembers when which operation was asked for. Waiting is on the loop's clock, which a test moves."""

    def __init__(self) -> None:
        self.request_error: Exception | None = None
        self.reply_error: Exception | None = None
        self.request_s = 0.0
        self.reply_s = 0.0
        self.calls: list[tuple[float, str]] = []

    async def request(self, operation: str) -> None:
        self.calls.append((asyncio.get_running_loop().time(), operation))
        await _later(self.request_s)
        if self.request_error is not None:
            raise self.request_error

    async def reply(self, operation: str) -> None:
        await _later(self.reply_s)
        if self.reply_error is not None:
            raise self.reply_error


async def _later(seconds: float) -> None:
    if seconds:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, waiter.set_result, None)
        try:
            await waiter
        finally:
            timer.cancel()


R1 = Member(replica=ReplicaId("r1"), incarnation="i1", address="a", model="small", fingerprint="w1/t1")
R2 = msgspec.structs.replace(R1, replica=ReplicaId("r2"), incarnation="i2")
VIEW = View(1, (R1,))


@pytest.mark.parametrize(
    ("own", "there", "says"),
    [
        ("w2/t1", "w1/t1", "both serve 'small', but its model is w2, that of r1 is w1."),
        ("w1/t2", "w1/t1", "but its tokenizer is t2, that of r1 is t1."),
        ("w2/t2", "w1/t1", "its model is w2, that of r1 is w1 and its tokenizer is t2, that of r1 is t1."),
        ("w1", "w1/t1", "its fingerprint is w1, that of r1 is w1/t1."),
        ("w1/t1/tiny s1", "w1/t1", "its smaller model is tiny s1, that of r1 is none."),
        ("w1/t1/mini s2", "w1/t1/tiny s1", "its smaller model is mini s2, that of r1 is tiny s1"),
    ],
)
def test_another_fingerprint_is_refused_saying_what_differs(own: str, there: str, says: str) -> None:
    members = View(1, (msgspec.structs.replace(R1, fingerprint=there),))
    check_compatibility(msgspec.structs.replace(R2, fingerprint=there), members)
    with pytest.raises(BadInput) as refused:
        check_compatibility(msgspec.structs.replace(R2, fingerprint=own), members)
    assert refused.value.public_message.startswith("r2 cannot join r1: ") and says in refused.value.public_message


def test_a_neighbour_joins_and_one_that_shares_no_protocol_is_refused_saying_what_to_do() -> None:
    check_compatibility(msgspec.structs.replace(R2, protocols=(1, 2)), VIEW)
    says = (
        "r2 cannot join r1: it speaks peer protocols 2 to 3, r1 speaks peer protocol 1: they are more than one release"
    )
    with pytest.raises(BadInput, match=says) as refused:
        check_compatibility(msgspec.structs.replace(R2, protocol=2, protocols=(2, 3)), VIEW)
    assert "upgrade r1 first, one release at a time" in refused.value.public_message


def test_a_process_that_was_this_replica_before_does_not_hinder_it() -> None:
    check_compatibility(msgspec.structs.replace(R1, incarnation="i9", fingerprint="w2/t2"), VIEW)


AWAY = Unavailable("directory_unavailable", "away")
LOST = OutcomeUnknown("directory_outcome_unknown", "lost")
EVERYWHERE = frozenset(range(PARTITIONS))
KEY = SessionKey(TenantId("t"), SessionId("s"))
OWNER = Owner(ReplicaId("r1"), "i1", ActivationId("a1"))


def member(name: str = "r1", **more: Any) -> Member:
    about = {"incarnation": "i1", "address": name, "model": "m", "fingerprint": "f", **more}
    return Member(replica=ReplicaId(name), **about)


class Keeper:
    def __init__(self, store: DirectoryState, who: Member | None, **options: object) -> None:
        self.weather = Weather()
        self.directory = MemoryDirectory(store, faults=self.weather)
        self.membership = Membership(self.directory, who, **options)  # type: ignore[arg-type]
        self.changes: list[Change] = []
        self.membership.listen(self.changes.append)

    async def announcements(self, seconds: float) -> int:
        before = len(self.weather.calls)
        await advance(seconds)
        return sum(operation == "announce" for _, operation in self.weather.calls[before:])


@contextlib.asynccontextmanager
async def keeping(store: DirectoryState, who: Member | None, **options: object) -> AsyncIterator[Keeper]:
    keeper = Keeper(store, who, **options)
    await keeper.directory.open()
    await keeper.membership.start()
    run = asyncio.create_task(keeper.membership.run())
    try:
        yield keeper
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        await keeper.directory.close()


@virtual
async def test_a_lease_is_renewed_with_the_present_load_and_never_runs_out() -> None:
    loads = iter(range(1000))
    async with keeping(DirectoryState(), member(), load=lambda: float(next(loads))) as keeper:
        membership = keeper.membership
        tenure = membership.tenure
        assert await keeper.announcements(60.0) == 30
        assert not membership.must_confirm
        assert membership.tenure == tenure
        assert membership.view.members[0].load == 30.0


@virtual
async def test_nobody_starts_without_a_directory() -> None:
    keeper = Keeper(DirectoryState(), member())
    with pytest.raises(Unavailable):
        await keeper.membership.start()


@virtual
async def test_past_its_own_deadline_an_owner_must_confirm_and_again_after_the_lease_is_back() -> None:
    async with keeping(DirectoryState(), member()) as keeper:
        membership = keeper.membership
        confirmed_under = membership.tenure
        keeper.weather.request_error = AWAY
        await advance(LEASE_TTL_S - 0.1)
        assert not membership.must_confirm
        await advance(0.1)
        assert membership.must_confirm
        assert membership.tenure != confirmed_under
        keeper.weather.request_error = None
        await advance(RENEW_S)
        assert not membership.must_confirm
        assert membership.tenure == confirmed_under + 1  # what was confirmed before the gap does not count after it
        (change,) = [change for change in keeper.changes if change.lapsed]
        assert change.rejoined == EVERYWHERE


@virtual
async def test_the_deadline_counts_from_when_the_announcement_was_sent() -> None:
    """The answer comes late; the directory's lease began at some moment before it, at worst when it was asked."""
    async with keeping(DirectoryState(), member()) as keeper:
        keeper.weather.request_s = 1.5
        await advance(RENEW_S + 1.5)  # asked at 2.0, answered at 3.5
        keeper.weather.request_error = AWAY
        await advance(2.0 + LEASE_TTL_S * 0.99 - 3.5 - 0.01)
        assert not keeper.membership.must_confirm
        await advance(0.02)
        assert keeper.membership.must_confirm


@virtual
async def test_an_answer_that_is_lost_does_not_count() -> None:
    async with keeping(DirectoryState(), member()) as keeper:
        keeper.weather.reply_error = LOST
        await advance(LEASE_TTL_S)
        assert keeper.membership.must_confirm  # although the directory has renewed it all the while
        keeper.weather.reply_error = None
        await advance(RENEW_S)
        assert not keeper.membership.must_confirm
        assert [change.rejoined for change in keeper.changes if change.lapsed] == [frozenset()]


@virtual
async def test_a_directory_that_does_not_answer_is_given_up_in_time_to_ask_again() -> None:
    async with keeping(DirectoryState(), member()) as keeper:
        keeper.weather.request_s = 1000.0
        await advance(RENEW_S + 1.0)
        keeper.weather.request_s = 0.0
        await advance(LEASE_TTL_S - RENEW_S - 1.0)
        assert not keeper.membership.must_confirm


@virtual
async def test_after_a_loss_it_is_back_by_itself_and_says_which_sessions_to_claim() -> None:
    store = DirectoryState()
    async with keeping(store, member()) as keeper:
        assert (await keeper.directory.claim(KEY, OWNER)).won
        tenure = keeper.membership.tenure
        await advance(0.5)
        store.empty()
        await advance(RENEW_S)
        (change,) = [change for change in keeper.changes if change.rejoined]
        assert change.rejoined == EVERYWHERE
        assert change.lapsed
        assert keeper.membership.tenure != tenure
        assert not keeper.membership.must_confirm
        assert (await keeper.directory.claim(KEY, OWNER)).won


@virtual
async def test_a_gateway_looks_without_being_a_member() -> None:
    store = DirectoryState()
    async with keeping(store, None) as gateway:
        assert not gateway.membership.view.members
        async with keeping(store, member()):
            await advance(RENEW_S)
            assert [each.replica for each in gateway.membership.view.members] == ["r1"]
        assert gateway.membership.must_confirm  # it owns nothing
        assert await gateway.announcements(10.0) == 0


@virtual
async def test_who_was_replaced_stops() -> None:
    store = DirectoryState()
    old = Keeper(store, member(incarnation="old"))
    await old.directory.open()
    await old.membership.start()
    running = asyncio.create_task(old.membership.run())
    async with keeping(store, member(incarnation="new")):
        await advance(RENEW_S)
        with pytest.raises(Conflict, match="replica_replaced"):
            await running


def test_a_lease_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        Membership(MemoryDirectory(), member(), lease_ttl_s=3.0, renew_s=2.0)


SESSION_LOAD = 1 / 16


def key(n: int) -> SessionKey:
    return SessionKey(TenantId("t"), SessionId(f"s{n}"))


def view(*members: Member, version: int = 1) -> View:
    return View(version, members)


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=90)
weights = st.sampled_from([0.25, 1.0, 1.0, 2.0, 7.5])
loads = st.floats(0, 2)
member_lists = st.dictionaries(names, st.tuples(weights, loads), min_size=1, max_size=8).map(
    lambda found: [member(name, weight=weight, load=load) for name, (weight, load) in found.items()]
)


@given(members=member_lists, number=st.integers(0, 10**6), factor=st.sampled_from([2.0, 10.0]))
def test_more_weight_never_pushes_a_session_away(members: list[Member], number: int, factor: float) -> None:
    before = ranking(key(number), members)
    for n, each in enumerate(members):
        heavier = msgspec.structs.replace(each, weight=each.weight * factor)
        after = ranking(key(number), [*members[:n], heavier, *members[n + 1 :]])
        assert after.index(each.replica) <= before.index(each.replica)
        assert [replica for replica in after if replica != each.replica] == [
            replica for replica in before if replica != each.replica
        ]


FIVE = [member(name, weight=weight) for name, weight in [("r1", 1), ("r2", 1), ("r3", 2), ("x" * 80, 1), ("é", 3)]]


def test_the_ranking_is_part_of_what_processes_agree_on() -> None:
    assert [ranking(key(n), FIVE)[0][:2] for n in range(8)] == ["xx", "é", "r1", "r3", "xx", "é", "xx", "é"]


@given(members=member_lists, numbers=st.lists(st.integers(0, 50), min_size=1, max_size=60), holders=st.data())
@example(members=[member("a", load=0.9), member("b", load=0.0)], numbers=list(range(60)), holders=None)
def test_the_bound_is_never_broken(members: list[Member], numbers: list[int], holders: st.DataObject | None) -> None:
    """Whatever is announced and whoever holds the KV: nothing is placed at a member that has 1.25 times its share."""
    placement = BoundedRendezvous(session_load=SESSION_LOAD)
    now = view(*members)
    work = {each.replica: each.load * each.weight for each in members}
    for number in numbers:
        holder = holders.draw(st.sampled_from(members)).replica if holders is not None else None
        chosen = placement.choose(key(number), now, holder=holder)
        assert chosen is not None
        share = BOUND * (sum(work.values()) + SESSION_LOAD) * chosen.weight / sum(each.weight for each in members)
        assert work[chosen.replica] < share + 1e-6
        work[chosen.replica] += SESSION_LOAD


def test_the_holder_of_the_kv_is_preferred_in_bounds_and_only_there() -> None:
    members = [member(f"r{n}", load=0.5) for n in range(4)]
    last = ranking(key(7), members)[-1]
    chosen = BoundedRendezvous(session_load=SESSION_LOAD).choose(key(7), view(*members), holder=last)
    assert chosen is not None and chosen.replica == last
    crowded = [msgspec.structs.replace(each, load=0.8) if each.replica == last else each for each in members]
    chosen = BoundedRendezvous(session_load=SESSION_LOAD).choose(key(7), view(*crowded), holder=last)
    assert chosen is not None and chosen.replica == ranking(key(7), members)[0]
    chosen = BoundedRendezvous(session_load=SESSION_LOAD).choose(key(7), view(*members), holder=ReplicaId("gone"))
    assert chosen is not None and chosen.replica == ranking(key(7), members)[0]


def test_where_everybody_drains_there_are_no_limits() -> None:
    placement = BoundedRendezvous()
    assert placement.limits(view(member("a", draining=True), member("b", draining=True)), model="m") == {}
    assert placement.choose(key(1), view(member("a", draining=True)), model="m") is None


def test_a_session_weighs_one_of_the_slots_that_members_announce() -> None:
    """Whatever the process that places believes of slots: 1.25 of the share of 3 sessions, rounded up, is 2 of them."""
    members = [with_slots(member("a", load=0.5), 4), with_slots(member("b"), 4)]
    limits = BoundedRendezvous().limits(view(*members))
    assert limits == {ReplicaId("a"): 0.5, ReplicaId("b"): 0.5}
    assert (
        session_load_of(view(with_slots(member("a", weight=2.0), 4), with_slots(member("b"), 8))) == (0.5 + 0.125) / 2
    )
    assert session_load_of(view(member("a"))) == 1 / 32


def with_slots(of: Member, slots: int) -> Member:
    info = EngineInfo(model="m", build="b", model_fingerprint="f", context_window=1, slots=slots, sampling=frozenset())
    return msgspec.structs.replace(of, engine=info)


def test_what_was_placed_counts_in_this_view_and_the_next() -> None:
    placement = BoundedRendezvous(session_load=SESSION_LOAD)
    views = [view(member("r1"), member("r2")) for _ in range(3)]  # three announcements that know of no load
    for n in range(8):
        placement.choose(key(n), views[0])

    def limit(now: View) -> float:
        return placement.limits(now)[ReplicaId("r1")] / SESSION_LOAD

    of_nine, of_one = math.ceil(BOUND * 9 / 2), math.ceil(BOUND * 1 / 2)
    assert [limit(views[0]), limit(views[0]), limit(views[1]), limit(views[2])] == [of_nine, of_nine, of_nine, of_one]


@given(members=member_lists, number=st.integers(0, 10**6), data=st.data())
def test_only_the_able_are_chosen(members: list[Member], number: int, data: st.DataObject) -> None:
    flags = data.draw(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=len(members), max_size=len(members)))
    changed = [
        msgspec.structs.replace(each, draining=draining, model="other" if other else "m")
        for each, (draining, other) in zip(members, flags, strict=True)
    ]
    avoid = data.draw(st.sets(st.sampled_from([each.replica for each in members])))
    able = {each.replica for each in changed if not each.draining and each.model == "m" and each.replica not in avoid}
    chosen = BoundedRendezvous().choose(key(number), view(*changed), model="m", avoid=avoid)
    assert (chosen is None) == (not able)
    if chosen is not None:
        assert chosen.replica in able


def test_a_new_version_is_ranked_anew_and_models_apart() -> None:
    placement = BoundedRendezvous()
    old = view(member("r1"), member("r2"), version=1)
    first = placement.choose(key(1), old)
    assert first is not None
    without = view(*(each for each in old.members if each.replica != first.replica), version=2)
    second = placement.choose(key(1), without)
    assert second is not None and second.replica != first.replica
    both = view(member("r1", model="a"), member("r2", model="b"), version=3)
    for model, replica in (("a", "r1"), ("b", "r2"), ("a", "r1")):
        chosen = placement.choose(key(1), both, model=model)
        assert chosen is not None and chosen.replica == replica
    assert placement.choose(key(1), view(version=4)) is None


@given(bound=st.floats(allow_nan=False), load=st.floats(allow_nan=False))
def test_nonsense_is_refused(bound: float, load: float) -> None:
    assume(bound < 1 or load <= 0)
    with pytest.raises(ValueError, match="a bound is at least 1"):
        BoundedRendezvous(bound=bound, session_load=load)


INFO = SimulatedEngine(SimulatedOptions()).info


def test_a_pool_promises_what_all_its_replicas_can_do() -> None:
    lesser = msgspec.structs.replace(
        INFO, context_window=512, tool_format="none", sampling=frozenset({"seed"}), aliases=("other",)
    )
    able = msgspec.structs.replace(INFO, sampling=frozenset({"text"}), images=True)
    of_m = member("a", engine=able, load=1.0), member("b", engine=lesser)
    states = pool_states(view(*of_m, member("c", model="n", engine=able)))
    assert states["m"] == (2, 0.5, 512, False, frozenset(), frozenset({"other"}), False)
    assert states["n"].sampling == frozenset({"text"}) and states["n"].replicas == 1
    assert states["n"].images


def test_who_takes_nothing_is_not_counted() -> None:
    drains, takes_none = member("a", draining=True, engine=INFO), member("b", weight=0.0, engine=INFO)
    states = pool_states(view(drains, takes_none, member("c", model="n")))
    assert set(states) == {"n"} and states["n"].window > 1_000_000 and states["n"].sampling is None


FORMER_OWNER = Owner(ReplicaId("r2"), "i2", ActivationId("a"))
HEAD = Head(
    key=KEY,
    epoch=Epoch("e"),
    fence=1,
    incarnation="j",
    top=5,
    owner=owner_label(FORMER_OWNER),
    created_at=UnixMs(0),
    updated_at=UnixMs(0),
)
TTL = 6.0


class OneLink:
    """The link to a replica that answers `holds` with `owner`."""

    def __init__(self, to: Member, owner: Owner | None) -> None:
        self.member = to
        self.down: LinkDown | None = None
        self._owner = owner

    async def holds(self, key: SessionKey, fence: int) -> Owner | None:
        return self._owner

    async def run(self) -> LinkDown:
        ended: asyncio.Future[LinkDown] = asyncio.get_running_loop().create_future()
        return await ended


class World:
    """The others: `owner` is what they answer, `down` that they do not answer a dial."""

    def __init__(self, owner: Owner | None = FORMER_OWNER, *, down: bool = False) -> None:
        self.owner = owner
        self.down = down
        self.queried = 0
        self.links = Links(self._connect, spawn=self._spawn)
        self.query = PreviousOwnerQuery(ReplicaId("r1"), self.links, spawn=self._spawn, lease_ttl_s=TTL)
        self._tasks: list[asyncio.Task[None]] = []

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._tasks.append(asyncio.get_running_loop().create_task(work))
        return self._tasks[-1]

    async def _connect(self, member: Member) -> PeerLink:
        self.queried += 1
        if self.down:
            raise LinkDown("refused")
        return OneLink(member, self.owner)  # type: ignore[return-value]

    def sees(self, *members: Member, version: int = 2) -> None:
        self.query.update(View(version, members))


@virtual
async def test_our_own_sessions_and_those_of_the_suspected_are_not_queried() -> None:
    world = World(down=True)
    world.sees(member(incarnation="i2"), member("r2", incarnation="i2"))
    own = msgspec.structs.replace(HEAD, owner="r1/a")
    assert await world.query.find_owner(KEY, own) is None and world.queried == 0
    await world.query.find_owner(KEY, HEAD)
    dials = world.queried
    assert await world.query.find_owner(KEY, HEAD) is None and world.queried == dials


@virtual
async def test_a_member_that_had_vanished_before_the_first_view_is_reached_while_it_answers() -> None:
    for down, owner in ((False, FORMER_OWNER), (True, None)):
        world = World(down=down)
        world.query.update(
            View(7, (member(incarnation="i2"),)),
            vanished=(member(), member("r2", incarnation="i2")),
        )
        await advance(0.1)
        assert world.queried == 1, "its own older process is not dialed"
        assert await world.query.find_owner(KEY, HEAD) == owner


@virtual
async def test_a_replica_that_was_never_met_may_be_back_for_one_lease() -> None:
    world = World()
    world.sees(member(incarnation="i2"), version=1)
    with pytest.raises(Unavailable) as moving:
        await world.query.find_owner(KEY, HEAD)
    assert moving.value.code == "session_moving"
    await advance(TTL)
    assert await world.query.find_owner(KEY, HEAD) is None
    world.query.directory_lost()
    with pytest.raises(Unavailable):
        await world.query.find_owner(KEY, HEAD)


COUNT = 1_000


MANY = [member(f"r{number}") for number in range(COUNT)]


def first(tree: RendezvousTree, number: int) -> ReplicaId:
    return next(tree.ranked(key(number)))


def test_a_view_that_is_not_large_is_ranked_flat() -> None:
    few = MANY[:FLAT_MAX]
    tree = RendezvousTree(few)
    assert any(ranking(key(number), few) != tuple(tree.ranked(key(number))) for number in range(5))
    without = [each for each in few if each.replica != ranking(key(1), few)[0]]
    assert ranking(key(1), without) == ranking(key(1), few)[1:]


def test_shares_are_by_weight() -> None:
    weights = [1.0, 2.0, 5.0]
    tree = RendezvousTree([member(f"r{number}", weight=weights[number % 3]) for number in range(COUNT)])
    total, placed = 8 * COUNT / 3, Counter[int]()
    for number in range(12_000):
        placed[int(first(tree, number)[1:]) % 3] += 1
    for kind, weight in enumerate(weights):
        expected = 12_000 * weight * COUNT / 3 / total
        assert abs(placed[kind] - expected) < 5 * math.sqrt(expected)


def test_who_leaves_moves_little_besides_its_own() -> None:
    before, after = RendezvousTree(MANY), RendezvousTree(MANY[50:])
    left = {each.replica for each in MANY[:50]}
    moved = kept = 0
    for number in range(6_000):
        was, now = first(before, number), first(after, number)
        assert now not in left
        moved += was != now
        kept += was not in left and was != now
    assert moved <= 6_000 * 0.05 * 2.5
    assert kept <= 6_000 * 0.05 * 1.5


def test_a_decision_with_a_holder_looks_at_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, now = BoundedRendezvous(session_load=SESSION_LOAD), view(*MANY)
    chosen = placement.choose(key(0), now)
    assert chosen is not None
    looks = itertools.count()
    work = placement._work

    def counted(each: Member) -> float:
        next(looks)
        return work(each)

    monkeypatch.setattr(placement, "_work", counted)
    assert placement.choose(key(1), now, holder=ReplicaId("r7")) == MANY[7]
    assert next(looks) == 1
    draining = view(*(msgspec.structs.replace(each, draining=True) for each in MANY), version=2)
    assert placement.choose(key(1), draining, holder=ReplicaId("r7")) is None


def test_who_drains_without_a_new_version_is_passed_over() -> None:
    placement = BoundedRendezvous(session_load=SESSION_LOAD)
    first_place = placement.choose(key(0), view(*MANY))
    assert first_place is not None
    members = tuple(msgspec.structs.replace(each, draining=each == first_place) for each in MANY)
    chosen = placement.choose(key(0), View(1, members))
    assert chosen is not None and chosen.replica == ranking(key(0), MANY)[1]


@pytest.mark.parametrize(
    ("one", "other", "spoken"),
    [((1, 1), (1, 2), 1), ((1, 2), (1, 2), 2), ((1, 2), (2, 3), 2), ((1, 1), (2, 3), None), ((3, 4), (1, 2), None)],
)
def test_two_speak_the_newest_that_both_know(one: tuple[int, int], other: tuple[int, int], spoken: int | None) -> None:
    assert common_protocol(one, other) == common_protocol(other, one) == spoken
    assert (protocol_mismatch("g1", one, "r1", other) is None) == (spoken is not None)
