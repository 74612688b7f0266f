"""Pages of sessions from several replicas become one; members and sessions are named as they are shown."""

from __future__ import annotations

from actors.peer.frames import ResidentSession, Surveyed
from actors.peer.links import LinkDown
from sessions.model.types import SessionId, SessionKey, TenantId
from transport.ops.operator_requests import SessionQuery, merge_pages


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
