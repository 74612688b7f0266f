"""Whose KV a response may reuse: that of its caller's sessions, and of nobody else's, whatever anybody chooses."""

from __future__ import annotations

import itertools

from sessions.model.generation import cache_scope_of
from sessions.model.types import Json, Principal, TenantId

STATELESS: dict[str, Json] = {"store": False}


def principal(tenant: str = "t", key: str = "k", user: str | None = None) -> Principal:
    return Principal(tenant=TenantId(tenant), key_id=key, user=user)


def test_a_response_to_a_client_of_sessions_has_no_scope() -> None:
    assert cache_scope_of(principal(), None) == b""


def test_the_same_caller_has_the_same_scope_whatever_else_it_requests() -> None:
    scope = cache_scope_of(principal(), STATELESS)
    assert len(scope) == 16
    assert scope == cache_scope_of(principal(), {}) == cache_scope_of(principal(), {"store": True})
    assert scope == cache_scope_of(principal(), {**STATELESS, "temperature": 0.5, "metadata": {"user": "x"}})
    assert cache_scope_of(principal(), {**STATELESS, "user": "a"}) == cache_scope_of(
        principal(), {**STATELESS, "safety_identifier": "a"}
    ), "both names of an end user are one"


def test_no_two_callers_have_one_scope_however_their_names_are_put_together() -> None:
    parts = ["a", "b", "a/b", "a\0b", "", "null"]
    callers = set(itertools.product(parts, parts, [None, *parts], [None, *(part for part in parts if part)]))
    scopes = {
        cache_scope_of(principal(tenant, key, user), STATELESS | ({} if end is None else {"user": end}))
        for tenant, key, user, end in callers
    }
    assert len(scopes) == len(callers)
