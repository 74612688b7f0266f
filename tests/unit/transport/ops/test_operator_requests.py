"""Pages of sessions from several replicas become one; members and sessions are named as they are shown."""

from __future__ import annotations

import pytest

from actors.peer.frames import ResidentSession, Surveyed
from actors.peer.links import LinkDown
from sessions.model.errors import BadInput, NotFound
from sessions.model.types import ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Member, View
from transport.ops.operator_requests import SessionQuery, find_member, merge_pages, parse_session_key


def resident(session: str, replica: str) -> ResidentSession:
    return ResidentSession(
        key=SessionKey(TenantId("acme"), SessionId(session)),
        replica=replica,
        state="idle",
        fence=1,
        epoch="e",
        top=1,
        open=(),
        kv_tier="device",
        kv_tokens=0,
        readers=0,
        idle_s=0.0,
        reason="new",
    )


def test_pages_are_merged_in_the_order_of_sessions_and_silent_replicas_are_named() -> None:
    answers: dict[str, Surveyed | LinkDown] = {
        "r1": Surveyed(0, (resident("a", "r1"), resident("c", "r1")), 7, True),
        "r2": Surveyed(0, (resident("b", "r2"),), 1, False),
        "r3": LinkDown("refused"),
    }
    page = merge_pages(SessionQuery(limit=2), answers)
    assert [each.key.session for each in page.residents] == ["a", "b"]
    assert (page.total, page.has_more, list(page.silent)) == (8, True, ["r3"])
    whole = merge_pages(SessionQuery(limit=3), {"r2": answers["r2"]})
    assert (whole.total, whole.has_more, whole.silent) == (1, False, {})


def test_a_session_is_named_with_its_tenant() -> None:
    assert parse_session_key("acme/one/two") == SessionKey(TenantId("acme"), SessionId("one/two"))
    with pytest.raises(BadInput, match="TENANT/SESSION"):
        parse_session_key("one")


def test_a_member_that_is_not_there_is_refused_with_those_that_are() -> None:
    member = Member(replica=ReplicaId("r1"), incarnation="i", address="127.0.0.1:5", model="m", fingerprint="f")
    assert find_member(View(version=1, members=(member,)), "r1") is member
    with pytest.raises(NotFound, match="There is no replica 'r2'; there are: r1"):
        find_member(View(version=1, members=(member,)), "r2")
    with pytest.raises(NotFound, match="there are: none"):
        find_member(View(version=1, members=()), "r2")
