"""The rules of the directory, on plain dictionaries and a clock in the test's hand."""

from __future__ import annotations

import pytest

from actors.directory.rules import DirectoryState
from sessions.model.errors import Unavailable
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


def test_an_entry_counts_while_its_lease_lives_in_either_direction_of_time() -> None:
    state = joined("r1", "r2")
    state.claim(KEY, owner(), instead_of=None, now=0.0)
    assert state.locate(KEY, now=TTL - 0.1) == owner()
    assert state.locate(KEY, now=TTL) is None
    assert state.locate(KEY, now=-TTL) is None, "a clock that went back keeps nobody alive"
    with pytest.raises(Unavailable):
        state.claim(KEY, owner("r1", "a2"), instead_of=None, now=TTL)
