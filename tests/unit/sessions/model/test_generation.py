"""Whose KV a response may reuse: that of its caller's sessions, and of nobody else's, whatever anybody chooses."""

from __future__ import annotations

from sessions.model.generation import cache_scope_of
from sessions.model.types import Json, Principal, TenantId

STATELESS: dict[str, Json] = {"store": False}


def principal(tenant: str = "t", key: str = "k", user: str | None = None) -> Principal:
    return Principal(tenant=TenantId(tenant), key_id=key, user=user)


def test_a_response_to_a_client_of_sessions_has_no_scope() -> None:
    assert cache_scope_of(principal(), None) == b""
