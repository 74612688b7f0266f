"""Whose a store is, and how much of it there is."""

from __future__ import annotations

from sessions.model.types import Principal, TenantId, UnixMs
from sessions.retrieval.vector_stores import (
    FileCounts,
    StoreId,
    VectorStore,
    file_not_found,
    may_see_store,
    store_not_found,
)


def principal(tenant: str = "acme", role: str = "user", user: str | None = "ann") -> Principal:
    return Principal(tenant=TenantId(tenant), key_id="k", user=user, role=role)  # type: ignore[arg-type]


def test_a_user_sees_their_own_and_a_service_its_tenants() -> None:
    store = VectorStore(
        id=StoreId("vs_1"), tenant=TenantId("acme"), user="ann", model="m", dimensions=3, created_at=UnixMs(1)
    )
    assert may_see_store(principal(), store) and may_see_store(principal(role="service", user=None), store)
    assert not may_see_store(principal(user="bob"), store) and not may_see_store(principal(user=None), store)
    assert not may_see_store(principal(tenant="beta", role="operator", user=None), store)


def test_nothing_that_is_not_there_says_more_than_that() -> None:
    assert store_not_found("x" * 99).public_message.count("x") == 64
    assert file_not_found("f").code == "vector_store_file_not_found"
    assert FileCounts(in_progress=1, failed=2).total == 3
