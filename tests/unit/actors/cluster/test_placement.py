"""Placement: minimal movement, weights, the bound, and the same answer in every process."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from actors.cluster.placement import BOUND, BoundedRendezvous, session_load_of
from actors.cluster.rendezvous import ranking
from sessions.model.generation import EngineInfo
from sessions.model.types import ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Member, View

R1, R2 = ReplicaId("r1"), ReplicaId("r2")
SESSION_LOAD = 1 / 16


def key(n: int) -> SessionKey:
    return SessionKey(TenantId("t"), SessionId(f"s{n}"))


def member(name: str, *, weight: float = 1.0, load: float = 0.0, model: str = "m", draining: bool = False) -> Member:
    return Member(
        replica=ReplicaId(name),
        incarnation="i",
        address="",
        model=model,
        fingerprint="f",
        weight=weight,
        load=load,
        draining=draining,
    )


def view(*members: Member, version: int = 1) -> View:
    return View(version, members)


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=90)
weights = st.sampled_from([0.25, 1.0, 1.0, 2.0, 7.5])
loads = st.floats(0, 2)
member_lists = st.dictionaries(names, st.tuples(weights, loads), min_size=1, max_size=8).map(
    lambda found: [member(name, weight=weight, load=load) for name, (weight, load) in found.items()]
)


# -- rendezvous -----------------------------------------------------------------------------------


@given(members=member_lists, number=st.integers(0, 10**6))
def test_who_leaves_moves_only_its_own_sessions(members: list[Member], number: int) -> None:
    whole = ranking(key(number), members)
    for gone in members:
        rest = ranking(key(number), [each for each in members if each is not gone])
        assert rest == tuple(replica for replica in whole if replica != gone.replica)


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


def test_sessions_spread_by_weight() -> None:
    members = [member("r1", weight=1), member("r2", weight=2), member("r3", weight=5)]
    first = Counter(ranking(key(n), members)[0] for n in range(8000))
    for each in members:
        expected = 8000 * each.weight / 8
        assert abs(first[each.replica] - expected) < 5 * math.sqrt(expected)


RANKINGS = "from tests.unit.actors.cluster.test_placement import *; print([ranking(key(n), FIVE) for n in range(50)])"
FIVE = [member(name, weight=weight) for name, weight in [("r1", 1), ("r2", 1), ("r3", 2), ("x" * 80, 1), ("é", 3)]]


@pytest.mark.parametrize("seed", ["1", "2"])
def test_every_process_ranks_alike(seed: str) -> None:
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run([sys.executable, "-c", RANKINGS], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == repr([ranking(key(n), FIVE) for n in range(50)])


def test_the_ranking_is_part_of_what_processes_agree_on() -> None:
    assert [ranking(key(n), FIVE)[0][:2] for n in range(8)] == ["xx", "é", "r1", "r3", "xx", "é", "xx", "é"]


# -- bound ----------------------------------------------------------------------------------------


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


def test_limits_are_what_rebalancing_goes_by() -> None:
    members = [
        member("r1", load=0.9),
        member("r2", load=0.3),
        member("r3", load=0.3, weight=2),
        member("d", draining=True),
    ]
    limits = BoundedRendezvous(session_load=SESSION_LOAD).limits(view(*members))
    assert set(limits) == {"r1", "r2", "r3"}
    # 1.8 of work and one session more over a weight of 4, times 1.25: 9.3 sessions, rounded up to 10 (and 18.6 to 19).
    assert limits[R1] == limits[R2] == pytest.approx(10 * SESSION_LOAD)
    assert limits[ReplicaId("r3")] == pytest.approx(19 * SESSION_LOAD / 2)


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


# -- who may be chosen ----------------------------------------------------------------------------


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
