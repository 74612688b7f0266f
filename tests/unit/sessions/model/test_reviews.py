"""Review cases: one per text, category and action; claims that lapse; decisions that are repeated."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sessions.model.errors import Conflict, NotFound
from sessions.model.reviews import (
    CLAIM_MS,
    Case,
    ReviewId,
    Subject,
    appealable,
    appealed,
    case_of,
    cases_to_open,
    check_claimable,
    check_decidable,
    command_mark,
    repeated_decision,
)
from sessions.model.types import UnixMs
from sessions.model.verdicts import Finding
from tests.support.machine.machine_fixture import KEY

NOW = UnixMs(1_000)
SUBJECT = Subject(key=KEY, name="r1", direction="output", user="ana", offset=3, now=NOW)


def finding(category: str = "pii/email", action: Any = "redact", **more: Any) -> Finding:
    return Finding(category=category, action=action, start=0, end=3, review=True, **more)


def changed(case: Case, **fields: Any) -> Case:
    return msgspec.structs.replace(case, **fields)


def test_one_case_for_each_category_and_action() -> None:
    findings = [
        finding(),
        finding("pii/phone"),
        finding(action="flag"),
        msgspec.structs.replace(finding("x"), review=False),
    ]
    cases = cases_to_open(findings, SUBJECT)
    assert [(case.about, case.action) for case in cases] == [("pii", "redact"), ("pii", "flag")]
    assert cases_to_open(findings, SUBJECT, known=[finding()])[0].action == "flag"
    assert cases_to_open(findings, SUBJECT) == cases, "their ids follow from what they are of"


def test_an_appeal_is_against_the_gravest_thing_and_the_last_of_its_kind() -> None:
    first, last = finding("a"), finding("b")
    assert appealable([first, last, finding(action="flag")]) is last
    assert appealable([finding(action="block"), last]) == finding(action="block")
    assert appealable([finding(action="flag")]) is None


def test_an_appeal_opens_a_decided_case_again_once() -> None:
    case = changed(case_of(finding(), SUBJECT), state="decided", outcome="upheld")
    appeal = case_of(finding(), SUBJECT, appeal="why")
    again = appealed(case, appeal)
    assert (again.state, again.note, again.appealed_at) == ("open", "why", NOW)
    assert appealed(again, changed(appeal, note="and again")) is again
    assert appealed(case, case_of(finding(), SUBJECT)) is case


def test_a_mere_flag_concerns_its_user_only_after_an_appeal() -> None:
    flag = case_of(finding(action="flag"), SUBJECT)
    assert not flag.concerns_user and changed(flag, appealed_at=NOW).concerns_user
    assert case_of(finding(), SUBJECT).concerns_user


def test_a_claim_keeps_others_off_until_it_lapses() -> None:
    case = changed(case_of(finding(), SUBJECT), state="claimed", claimed_by="eva", claimed_until=NOW + CLAIM_MS)
    check_claimable(case, "eva", NOW)
    check_decidable(case, "eva", NOW)
    with pytest.raises(Conflict, match="review_claimed"):
        check_claimable(case, "max", NOW)
    check_claimable(case, "max", NOW + CLAIM_MS)
    with pytest.raises(Conflict, match="review_not_claimed"):
        check_decidable(case, "eva", NOW + CLAIM_MS)
    with pytest.raises(Conflict, match="review_decided"):
        check_claimable(changed(case, state="decided"), "eva", NOW)


def test_a_repeated_decision_is_the_same_answer() -> None:
    case = case_of(finding(), SUBJECT)
    mark = command_mark("c", "eva", "upheld")
    assert repeated_decision(case, case.id, mark, "") is None
    assert repeated_decision(case, case.id, mark, mark) is case
    with pytest.raises(Conflict, match="idempotency_conflict"):
        repeated_decision(case, case.id, command_mark("c", "eva", "overturned"), mark)
    assert repeated_decision(case, case.id, command_mark("c", "max", "upheld"), mark) is None, "another's id"
    with pytest.raises(NotFound):
        repeated_decision(None, ReviewId("r"), mark, "")
