"""The tree in which large views are ranked: whole, by weight, little moved, and few hashes."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import msgspec
import pytest

from actors.cluster import rendezvous
from actors.cluster.placement import BoundedRendezvous
from actors.cluster.rendezvous import FLAT_MAX, RendezvousTree, ranking
from sessions.model.types import ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Member, View

COUNT = 1_000


def key(number: int) -> SessionKey:
    return SessionKey(TenantId("t"), SessionId(f"s{number}"))


def member(number: int, weight: float = 1.0) -> Member:
    return Member(
        replica=ReplicaId(f"r{number}"), incarnation="i", address="", model="m", fingerprint="f", weight=weight
    )


MANY = [member(number) for number in range(COUNT)]


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
    tree = RendezvousTree([member(number, weights[number % 3]) for number in range(COUNT)])
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


def test_a_place_takes_few_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()
    weighed = rendezvous._weighed

    def counted(digest: bytes, weight: float) -> float:
        next(calls)
        return weighed(digest, weight)

    tree = RendezvousTree([member(number) for number in range(10_000)])
    monkeypatch.setattr(rendezvous, "_weighed", counted)
    for number in range(100):
        first(tree, number)
    assert next(calls) <= 100 * 64


def test_a_decision_with_a_holder_looks_at_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, view = BoundedRendezvous(session_load=1 / 16), View(1, tuple(MANY))
    chosen = placement.choose(key(0), view)
    assert chosen is not None
    looks = itertools.count()
    work = placement._work

    def counted(each: Member) -> float:
        next(looks)
        return work(each)

    monkeypatch.setattr(placement, "_work", counted)
    assert placement.choose(key(1), view, holder=ReplicaId("r7")) == MANY[7]
    assert next(looks) == 1
    draining = View(2, tuple(msgspec.structs.replace(each, draining=True) for each in MANY))
    assert placement.choose(key(1), draining, holder=ReplicaId("r7")) is None


def test_who_drains_without_a_new_version_is_passed_over() -> None:
    placement = BoundedRendezvous(session_load=1 / 16)
    first_place = placement.choose(key(0), View(1, tuple(MANY)))
    assert first_place is not None
    members = tuple(msgspec.structs.replace(each, draining=each == first_place) for each in MANY)
    chosen = placement.choose(key(0), View(1, members))
    assert chosen is not None and chosen.replica == ranking(key(0), MANY)[1]
