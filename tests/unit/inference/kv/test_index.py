"""The index of a tier: what it says after any additions and removals, and how it finds what is worth least."""

from __future__ import annotations

import array
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from inference.kv.index import SAMPLE, Blob, SnapshotIndex, lowest_ranked
from inference.tokens import common_prefix
from sessions.model.types import SessionKey, TenantId
from tests.support.engines.kv import key


class Thing:
    def __init__(self, key: SessionKey, size: int, scope: Blob = b"", tokens: str = "") -> None:
        self.key = key
        self.bytes = size
        self.scope = scope
        self.tokens = array.array("I", map(ord, tokens))


class Move(NamedTuple):
    adds: bool
    tenant: str
    session: str
    size: int
    scope: bytes
    tokens: str


TOKENS = st.text("xy", max_size=5)
SCOPES = (b"", b"s", b"t")
MOVES = st.lists(
    st.builds(
        Move,
        st.booleans(),
        st.sampled_from("tu"),
        st.sampled_from("abc"),
        st.integers(0, 9),
        st.sampled_from(SCOPES),
        TOKENS,
    )
)


@given(MOVES, TOKENS)
def test_it_says_what_a_list_would_say(moves: list[Move], prompt: str) -> None:
    sought = array.array("I", map(ord, prompt))
    shelf, held = SnapshotIndex[Thing](), list[Thing]()
    gone = Thing(key("a", "t"), 5)
    for move in moves:
        who = key(move.session, move.tenant)
        if move.adds:
            held.append(Thing(who, move.size, move.scope, move.tokens))
            shelf.add(held[-1])
        else:
            found = next((thing for thing in held if thing.key == who), gone)
            assert shelf.remove(found) == (found in held)
            held = [thing for thing in held if thing is not found]
        assert len(shelf) == len(held) and set(shelf) == set(held)
        assert set(shelf.sessions) == {thing.key for thing in held}
        assert gone not in shelf and all(thing in shelf for thing in held)
        for tenant in map(TenantId, "tu"):
            own = [thing for thing in held if thing.key.tenant == tenant]
            assert set(shelf.of_tenant(tenant)) == set(own)
            assert shelf.bytes_of(tenant) == sum(thing.bytes for thing in own)
            for scope in SCOPES:
                shares = {thing: common_prefix(thing.tokens, sought) for thing in own if scope and thing.scope == scope}
                nearest, most = shelf.nearest(tenant, scope, sought)
                assert most == max(shares.values(), default=0), "nothing of another scope or tenant, nor of none"
                assert (nearest is None) == (not most) and (nearest is None or shares[nearest] == most)
            for session in "abc":
                assert shelf.of(key(session, tenant)) == [t for t in own if t.key.session == session], "in order"


def test_of_few_the_least_is_found_and_of_many_one_of_the_least() -> None:
    assert lowest_ranked([], abs) is None
    assert lowest_ranked(range(SAMPLE, 0, -1), abs) == 1
    ranked = list[int]()
    found = lowest_ranked(range(100 * SAMPLE), lambda number: ranked.append(number) or number)  # type: ignore[func-returns-value]
    assert found is not None and found < 10 * SAMPLE, "the chance that none of the drawn is of the worst tenth is 2e-12"
    assert len(ranked) == SAMPLE and len(set(ranked)) == SAMPLE
