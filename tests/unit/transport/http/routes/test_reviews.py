"""`/v1/reviews`: who sees which cases, and what is shown of one."""

from __future__ import annotations

from typing import Any

import pytest

from persistence.memory.journal import MemoryJournal
from sessions.model.audit import public
from sessions.model.commands import FeedbackSet, Ok
from sessions.model.errors import BadInput
from sessions.model.reviews import Case, ReviewId, Subject, case_of
from sessions.model.types import SCOPES, Principal, ResponseId, SessionId, SessionKey, TenantId, UnixMs
from sessions.model.verdicts import Finding
from tests.support.doors.transport import FakeSessions, gateway_over, http_client, memory_sessions
from transport.auth.authenticator import Authenticator, key_digest
from transport.gateway import Gateway
from transport.http.routes.reviews import parse_place, review_fields

KEYS = {
    key_digest(tenant): Principal(tenant=TenantId(tenant), key_id="k", role="service", scopes=SCOPES)
    for tenant in ("acme", "beta")
}


def a_case() -> Case:
    subject = Subject(
        key=SessionKey(TenantId("acme"), SessionId("s")),
        name="resp_1",
        direction="output",
        user="ana",
        offset=1,
        now=UnixMs(1),
        response_id=ResponseId("resp_1"),
    )
    return case_of(Finding(category="keyword", action="block", start=0, end=5), subject, appeal="please look")


@pytest.fixture
async def sessions() -> FakeSessions:
    sessions = await memory_sessions()
    case = a_case()
    sessions.journal.database.reviews[case.id] = case
    return sessions


@pytest.fixture
async def gateway(sessions: FakeSessions) -> Gateway:
    assert isinstance(sessions.journal, MemoryJournal)
    return gateway_over(sessions, Authenticator(KEYS, clock=lambda: 0.0, now_ms=lambda: UnixMs(1)))


async def test_a_tenant_sees_its_own_cases_and_no_others(gateway: Gateway) -> None:
    path = f"/v1/reviews/{a_case().id}"
    async with http_client(gateway, authorization="Bearer acme") as client:
        page = (await client.get("/v1/reviews")).json()
        assert [case["category"] for case in page["data"]] == ["keyword"] and page["data"][0]["readable"]
        assert (await client.get(path)).json()["note"] == "please look"
    async with http_client(gateway, authorization="Bearer beta") as client:
        assert (await client.get("/v1/reviews")).json()["data"] == []
        assert (await client.get(path)).status_code == 404


async def test_a_decision_is_made_once_claimed_audited_and_announced(gateway: Gateway, sessions: FakeSessions) -> None:
    path = f"/v1/reviews/{a_case().id}"
    async with http_client(gateway, authorization="Bearer acme") as client:
        early = await client.post(f"{path}/decide", json={"outcome": "upheld"})
        assert early.json()["error"]["code"] == "review_not_claimed"
        assert (await client.post(f"{path}/claim")).json()["mine"]
        decided = (await client.post(f"{path}/decide", json={"outcome": "upheld", "note": "fine"})).json()
        assert (decided["outcome"], decided["remark"]) == ("upheld", "fine")
    rows = await gateway.store.audit.rows(TenantId("acme"), after=0, limit=9)
    assert [public(row)["action"] for row in rows] == ["review.decided"] and len(sessions.executed) == 1


def test_a_claim_is_shown_while_it_lasts() -> None:
    fields: dict[str, Any] = review_fields(a_case(), "acme/k", 1)
    assert (fields["state"], fields["claimed_by"], fields["mine"]) == ("open", None, False)


def test_places_are_read_as_they_are_written() -> None:
    assert parse_place("12.rev_a") == (12, "rev_a")
    for wrong in ("", "12", ".a", "x.a", "٣.a", "1" * 17 + ".a"):
        with pytest.raises(BadInput):
            parse_place(wrong)


async def test_feedback_is_a_command_and_says_which_case_it_opened(sessions: FakeSessions) -> None:
    sessions.answer = lambda _, command: Ok(id=command.id, offset=9, review_id=ReviewId("rev_x"))
    path = "/v1/sessions/s/responses/resp_1/feedback"
    async with http_client(gateway_over(sessions)) as client:
        down = await client.post(path, json={"rating": "down", "reason": "wrong year"})
        none = await client.post(path, json={"rating": None})
        wrong = [await client.post(path, json=body) for body in ({"rating": "so so"}, {}, {"rating": "up", "by": "me"})]
    assert down.json() == {
        "object": "response.feedback",
        "session": "s",
        "response_id": "resp_1",
        "rating": "down",
        "reason": "wrong year",
        "offset": 9,
        "review_id": "rev_x",
    }
    assert (none.json()["rating"], [answer.status_code for answer in wrong]) == (None, [400] * 3)
    first, second = sessions.executed
    assert isinstance(first, FeedbackSet) and (first.rating, first.reason) == ("down", "wrong year")
    assert isinstance(second, FeedbackSet) and second.rating is None
