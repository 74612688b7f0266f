"""`/v1/reviews`: who sees which cases, and what is shown of one."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model.errors import BadInput
from sessions.model.reviews import Case, Subject, case_of
from sessions.model.types import ResponseId, SessionId, SessionKey, TenantId, UnixMs
from sessions.model.verdicts import Finding
from transport.http_api.routes.reviews import parse_place, review_fields


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


def test_a_claim_is_shown_while_it_lasts() -> None:
    fields: dict[str, Any] = review_fields(a_case(), "acme/k", 1)
    assert (fields["state"], fields["claimed_by"], fields["mine"]) == ("open", None, False)


def test_places_are_read_as_they_are_written() -> None:
    assert parse_place("12.rev_a") == (12, "rev_a")
    for wrong in ("", "12", ".a", "x.a", "٣.a", "1" * 17 + ".a"):
        with pytest.raises(BadInput):
            parse_place(wrong)
