"""Who may do what: scopes, authorities, and whose a session is."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from sessions.model.authorization import (
    acting_for,
    allows,
    demand_administrator,
    demand_operator,
    demand_visible,
    may_grant,
    may_see,
    operates,
    tenant_for,
)
from sessions.model.errors import BadInput, Forbidden, NotFound
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    SCOPES,
    Authority,
    Principal,
    Scope,
    SessionId,
    SessionKey,
    TenantId,
)

ACME = TenantId("acme")
KEY = SessionKey(ACME, SessionId("s1"))


def principal(*scopes: Scope, role: Authority = "user", user: str | None = None, tenant: TenantId = ACME) -> Principal:
    return Principal(tenant=tenant, key_id="k", user=user, role=role, scopes=scopes)


def test_a_scope_allows_itself_and_chat_also_reading() -> None:
    allowed = {have: {want for want in SCOPES if allows(principal(have), want)} for have in SCOPES}
    assert allowed == {scope: {scope} for scope in SCOPES} | {"chat": {"chat", "read"}}
    assert not any(allows(principal(), want) for want in SCOPES)


@pytest.mark.parametrize("role", get_args(Authority))
@pytest.mark.parametrize("scope", SCOPES)
def test_operators_routes_are_for_operators_who_administer(role: Authority, scope: Scope) -> None:
    who = principal(scope, role=role)
    assert operates(who) == ((role, scope) == ("operator", "admin"))
    if operates(who):
        demand_operator(who)
    else:
        with pytest.raises(Forbidden):
            demand_operator(who)


@pytest.mark.parametrize("role", get_args(Authority))
def test_a_tenants_affairs_are_for_its_administrators(role: Authority) -> None:
    if role == "user":
        with pytest.raises(Forbidden):
            demand_administrator(principal(*SCOPES, role=role))
    else:
        assert demand_administrator(principal("admin", role=role)) == ACME
    with pytest.raises(Forbidden):
        demand_administrator(principal("chat", "read", "usage", "review", role=role))
    assert may_grant(principal("admin", role=role), "service")
    assert may_grant(principal("admin", role=role), "operator") == (role == "operator")


def test_a_service_speaks_for_an_end_user_and_is_no_more_than_that() -> None:
    service = principal(*SCOPES, role="service")
    assert acting_for(service, None) == service
    ana = acting_for(service, "ana")
    assert (ana.role, ana.user, ana.key_id, ana.tenant) == ("user", "ana", "k", ACME)
    assert "admin" not in ana.scopes and ana.id != service.id
    assert may_see(ana, KEY, "ana") and not may_see(ana, KEY, "ben") and not may_see(ana, KEY, None)
    with pytest.raises(BadInput):
        acting_for(service, "")
    for role in ("user", "operator"):
        with pytest.raises(Forbidden):
            acting_for(principal(*SCOPES, role=role, user="ben"), "ana")


def test_another_tenants_affairs_are_the_operators() -> None:
    assert tenant_for(principal("admin", role="service"), None) == ACME
    assert tenant_for(principal("admin", role="service"), "acme") == ACME
    with pytest.raises(Forbidden):
        tenant_for(principal("admin", role="service"), "other")
    assert tenant_for(principal("admin", role="operator"), "other") == "other"


def test_a_session_is_its_tenants_and_its_users() -> None:
    ana, ben = (principal("chat", user=user) for user in ("ana", "ben"))
    service = principal("chat", role="service")
    assert may_see(ana, KEY, "ana") and not may_see(ben, KEY, "ana")
    assert may_see(service, KEY, "ana") and may_see(service, KEY, None)
    assert not may_see(ana, KEY, None)
    for role in get_args(Authority):
        assert not may_see(principal(*SCOPES, role=role, user="ana", tenant=TenantId("other")), KEY, "ana")


def test_reading_needs_a_scope_before_anything_is_said_of_the_session() -> None:
    with pytest.raises(Forbidden):
        demand_visible(principal("usage", user="ben"), KEY, "ana")
    with pytest.raises(NotFound, match="There is no session 's1'"):
        demand_visible(principal("read", user="ben"), KEY, "ana")
    demand_visible(principal("read", user="ana"), KEY, "ana")


def test_principals_of_before_there_were_scopes_are_read_as_what_they_could_do() -> None:
    old = msgspec.msgpack.encode({"tenant": "acme", "key_id": "k", "user": None, "role": "service"})
    read = msgspec.msgpack.decode(old, type=Principal)
    assert read == Principal(tenant=ACME, key_id="k", role="service")
    assert allows(read, "chat") and not allows(read, "admin")
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(LOCAL_PRINCIPAL), type=Principal)
    assert again == LOCAL_PRINCIPAL
    assert len(msgspec.msgpack.encode(read)) <= len(old)
