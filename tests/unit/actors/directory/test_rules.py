"""The rules of the directory, on plain dictionaries and a clock in the test's hand."""

from __future__ import annotations

import pytest

from actors.directory.rules import GRACE_TTLS, DirectoryState
from sessions.model.errors import Conflict, Unavailable
from sessions.model.types import ActivationId, ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Member, Owner

KEY = SessionKey(TenantId("t"), SessionId("s"))
TTL = 6.0


def member(replica: str = "r1", incarnation: str = "i1") -> Member:
    return Member(replica=ReplicaId(replica), incarnation=incarnation, address="", model="m", fingerprint="f")


def owner(replica: str = "r1", activation: str = "a1", incarnation: str = "i1") -> Owner:
    return Owner(ReplicaId(replica), incarnation, ActivationId(activation))


def joined(*replicas: str) -> DirectoryState:
    state = DirectoryState()
    for replica in replicas:
        state.announce(member(replica), generation=0, seen=0, ttl=TTL, now=0.0)
    return state


def test_a_claim_is_won_by_the_first_and_by_who_replaces_exactly_that_owner() -> None:
    state = joined("r1", "r2", "r3")
    assert state.claim(KEY, owner(), instead_of=None, now=1.0).won
    assert state.claim(KEY, owner(), instead_of=None, now=1.0).won, "idempotent on the owner"
    lost = state.claim(KEY, owner("r2"), instead_of=owner("r3"), now=1.0)
    assert (lost.won, lost.owner) == (False, owner())
    assert state.claim(KEY, owner("r2"), instead_of=owner(), now=1.0).won
    assert state.locate(KEY, now=1.0) == owner("r2")
    state.release(KEY, owner())
    assert state.locate(KEY, now=1.0) == owner("r2"), "only its owner gives it back"
    state.check_integrity()


def test_an_entry_counts_while_its_lease_lives_in_either_direction_of_time() -> None:
    state = joined("r1", "r2")
    state.claim(KEY, owner(), instead_of=None, now=0.0)
    assert state.locate(KEY, now=TTL - 0.1) == owner()
    assert state.locate(KEY, now=TTL) is None
    assert state.locate(KEY, now=-TTL) is None, "a clock that went back keeps nobody alive"
    with pytest.raises(Unavailable):
        state.claim(KEY, owner("r1", "a2"), instead_of=None, now=TTL)


def test_giving_the_lease_back_gives_every_session_back() -> None:
    state = joined("r1")
    state.claim(KEY, owner(), instead_of=None, now=0.0)
    state.withdraw(ReplicaId("r1"), "another process", now=1.0)
    assert state.locate(KEY, now=1.0) == owner()
    state.withdraw(ReplicaId("r1"), "i1", now=1.0)
    assert state.locate(KEY, now=1.0) is None and state.entry_count == 0


def test_the_version_grows_past_what_a_caller_has_seen_and_not_for_load() -> None:
    state = joined("r1")
    before = state.view(seen=0, now=1.0).version
    state.announce(member(), generation=1, seen=0, ttl=TTL, now=1.0)
    assert state.view(seen=0, now=1.0).version == before
    state.empty()
    assert state.view(seen=before + 7, now=1.0).version > before + 7


def test_a_process_that_was_replaced_is_refused_and_a_new_one_takes_its_place_at_once() -> None:
    state = DirectoryState()
    _, generation = state.announce(member(), generation=0, seen=0, ttl=TTL, now=0.0)
    state.claim(KEY, owner(), instead_of=None, now=0.0)
    answer, _ = state.announce(member(incarnation="i2"), generation=0, seen=0, ttl=TTL, now=1.0)
    assert answer.rejoined and state.locate(KEY, now=1.0) is None
    with pytest.raises(Conflict) as refused:
        state.announce(member(), generation=generation, seen=0, ttl=TTL, now=1.0)
    assert refused.value.code == "replica_replaced"


def test_a_lapsed_lease_is_remembered_for_a_while_and_then_its_entries_go() -> None:
    state = joined("r1", "r2")
    state.claim(KEY, owner(), instead_of=None, now=0.0)
    assert [each.replica for each in state.view(seen=0, now=TTL + 1).members] == []
    assert state.entry_count == 1
    answer, _ = state.announce(member(), generation=1, seen=0, ttl=TTL, now=TTL + 1)
    assert answer.rejoined and state.locate(KEY, now=TTL + 1) == owner(), "it comes back to what it had"
    state.view(seen=0, now=TTL * (GRACE_TTLS + 2))
    assert state.entry_count == 0


def test_interest_lapses_and_only_those_who_watch_are_notified() -> None:
    state = joined("r1")
    stream = state.listen("g1")
    state.watch("g1", [KEY], ttl=TTL, now=0.0)
    state.activated(KEY, owner(), now=1.0)
    state.activated(KEY, owner(), now=TTL)
    assert state.watchers(KEY, now=1.0) == ["g1"] and state.watchers(KEY, now=TTL) == []
    assert len(stream._unread) == 1
    state.view(seen=0, now=TTL)
    assert state.interest_count == 0
