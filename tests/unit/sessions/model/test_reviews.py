"""Review cases: one per text, category and action; claims that lapse; decisions that are repeated."""

from __future__ import annotations

from typing import Any

import msgspec

from sessions.model.reviews import (
    Case,
    Subject,
    appealable,
    case_of,
    cases_to_open,
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


def test_a_mere_flag_concerns_its_user_only_after_an_appeal() -> None:
    flag = case_of(finding(action="flag"), SUBJECT)
    assert not flag.concerns_user and changed(flag, appealed_at=NOW).concerns_user
    assert case_of(finding(), SUBJECT).concerns_user
