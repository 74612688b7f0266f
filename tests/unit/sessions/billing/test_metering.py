"""Who may query whose usage, and how rows and sums are shown."""

from __future__ import annotations

import msgspec
import pytest

from sessions.billing.metering import (
    DAY_MS,
    UsageGroup,
    UsageTotal,
    allowed_query,
    day_text,
    total_public,
)
from sessions.model.errors import Forbidden
from sessions.model.types import Principal, TenantId

KEY_OF_A_USER = Principal(tenant=TenantId("acme"), key_id="k", user="ana", role="user", scopes=("usage",))
KEY_OF_A_TENANT = msgspec.structs.replace(KEY_OF_A_USER, user=None, role="service")
OPERATOR = msgspec.structs.replace(KEY_OF_A_USER, user=None, role="operator", scopes=("usage", "admin"))


def test_a_users_key_sees_that_user_only() -> None:
    query = allowed_query(KEY_OF_A_USER, user="bob")
    assert (query.tenant, query.user) == ("acme", "ana")


def test_a_tenants_key_sees_its_tenant_and_operators_every_one() -> None:
    assert allowed_query(KEY_OF_A_TENANT, user="bob").user == "bob"
    with pytest.raises(Forbidden):
        allowed_query(KEY_OF_A_TENANT, tenant="other")
    assert allowed_query(OPERATOR, tenant="other").tenant == "other"


def test_the_scope_is_needed() -> None:
    with pytest.raises(Forbidden):
        allowed_query(msgspec.structs.replace(KEY_OF_A_TENANT, scopes=("chat",)))


def test_days_are_whole_and_the_last_is_included() -> None:
    query = allowed_query(KEY_OF_A_TENANT, first_day="1970-01-02", last_day="1970-01-02")
    assert (query.since, query.until) == (DAY_MS, 2 * DAY_MS)


def test_a_sum_shows_its_dimensions_and_a_cost_where_it_has_one() -> None:
    total = UsageTotal(
        group=UsageGroup(day=1, user="", model="m", currency="USD"),
        responses=1,
        input_tokens=2,
        cached_tokens=0,
        output_tokens=3,
        reasoning_tokens=0,
        cached_output_tokens=0,
        recomputed_tokens=4,
        withheld_tokens=0,
        cost=1_500_000_000_000,
    )
    shown = total_public(total, ("day", "user"))
    assert (shown["day"], shown["user"], shown["retried_tokens"]) == ("1970-01-02", None, 4)
    assert "model" not in shown and shown["cost"] == {"amount": "1.5", "currency": "USD"}
    free = msgspec.structs.replace(total, group=UsageGroup(model="m"))
    assert total_public(free, ())["cost"] is None
    assert day_text(-1) == ""
