"""What operators see of a cluster: pages of sessions as a table and as JSON, members as lines."""

from __future__ import annotations

import json

import pytest

from actors.peer.frames import ResidentSession
from sessions.model.types import ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Member, View
from transport.cli.cluster import ListSessions, format_members, format_sessions, sessions_as_json
from transport.cli.settings import BadSetting
from transport.ops.operator_requests import SessionPage, SessionQuery

ONE = ResidentSession(
    key=SessionKey(TenantId("acme"), SessionId("one")),
    replica="r1",
    state="idle",
    fence=3,
    epoch="e",
    top=12,
    open=(),
    kv_tier="device",
    kv_tokens=40,
    readers=2,
    idle_s=7.4,
    reason="handed off by r2; choice 1 of 2",
)


def test_sessions_as_a_table_and_as_json() -> None:
    page = SessionPage([ONE], 5, True, {"r3": "refused: nobody listens"})
    assert format_sessions(page).splitlines() == [
        "SESSION   OWNER  FENCE  STATE     KV         OPEN TURN  TOP  READERS  WHY HERE",
        "acme/one  r1     3      idle 7 s  device 40  -          12   2        handed off by r2; choice 1 of 2",
        "r3 does not answer: refused: nobody listens",
        "1 of 5 sessions in memory; parked ones belong to nobody",
        "next page: --after acme/one",
    ]
    read = json.loads(sessions_as_json(page))
    assert read["sessions"][0]["tenant"] == "acme" and read["sessions"][0]["session"] == "one"
    assert (read["total"], read["has_more"], read["silent"]) == (5, True, {"r3": "refused: nobody listens"})
    assert set(read) == {"sessions", "total", "has_more", "silent"}


def test_a_query_is_what_the_options_name() -> None:
    options = ListSessions(replica="r1", state="idle", limit=7, after="a/b", as_json=True)
    assert options.query == SessionQuery(replica="r1", state="idle", limit=7, after="a/b")
    for limit in (0, 1001):
        with pytest.raises(BadSetting, match="limit"):
            ListSessions(limit=limit)


def test_members_are_a_line_each() -> None:
    member = Member(replica=ReplicaId("r1"), incarnation="i", address="127.0.0.1:5", model="m", fingerprint="f")
    draining = Member(
        replica=ReplicaId("r2"), incarnation="i", address="127.0.0.1:6", model="m", fingerprint="f", draining=True
    )
    view = View(version=4, members=(member, draining))
    assert format_members(view).splitlines() == [
        "view 4, 2 replicas",
        "r1  serving  load 0.00  127.0.0.1:5  m",
        "r2  draining  load 0.00  127.0.0.1:6  m",
    ]
