"""What people think of answers: one rating each, changeable; a thumbs-down is a case for reviewers."""

from __future__ import annotations

import msgspec
import pytest

from sessions.machine import inputs_and_effects
from sessions.machine.client_state import client_state
from sessions.machine.feedback import RATERS_MAX
from sessions.model import commands as cm
from sessions.model.events import FeedbackUpdated
from sessions.model.reviews import Rating
from sessions.model.types import LOCAL_PRINCIPAL, Principal, ResponseId
from tests.support.machine.machine_fixture import SESSION, Ground


@pytest.fixture
def ground() -> Ground:
    made = Ground()
    made.create()
    return made


def answered(ground: Ground) -> ResponseId:
    response_id = ground.say().response_id
    assert response_id is not None
    ground.finish(response_id)
    return response_id


def rate(
    ground: Ground, response_id: ResponseId, rating: Rating | None, reason: str = "", by: Principal = LOCAL_PRINCIPAL
) -> inputs_and_effects.Step:
    command = cm.FeedbackSet(id=ground.name(), session=SESSION, response_id=response_id, rating=rating, reason=reason)
    return ground.input(inputs_and_effects.Command(by, command, cm.command_digest(command)))


def shown(ground: Ground) -> list[tuple[str, str, str]]:
    return [(each["by"], each["rating"], each["reason"]) for each in client_state(ground.state).get("feedback", [])]


def test_a_rating_is_changed_and_taken_back(ground: Ground) -> None:
    response_id = answered(ground)
    assert rate(ground, response_id, "up").reviews == []
    assert shown(ground) == [("local", "up", "")]
    (case,) = rate(ground, response_id, "down", "wrong year").reviews
    assert (case.cause, case.action, case.category, case.note) == ("feedback", "flag", "feedback", "wrong year")
    assert (case.response_id, case.concerns_user) == (response_id, False)
    assert shown(ground) == [("local", "down", "wrong year")]
    rate(ground, response_id, None)
    assert shown(ground) == [] and "feedback" not in client_state(ground.state)


def test_the_same_again_writes_nothing_and_opens_nothing(ground: Ground) -> None:
    response_id = answered(ground)
    rate(ground, response_id, "down", "why")
    again = rate(ground, response_id, "down", "why")
    assert again.records == [] and again.reviews == []
    assert isinstance(again.answer, cm.Ok) and again.answer.noop and again.answer.review_id is not None
    assert rate(ground, response_id, "down", "better said").reviews[0].id == again.answer.review_id


def test_each_person_has_one_rating_and_there_are_so_many_persons(ground: Ground) -> None:
    response_id = answered(ground)
    for number in range(RATERS_MAX):
        rate(ground, response_id, "up", by=msgspec.structs.replace(LOCAL_PRINCIPAL, key_id=f"k{number}"))
    assert len(shown(ground)) == RATERS_MAX
    refused = rate(ground, response_id, "up").answer
    assert not isinstance(refused, cm.Ok) and refused is not None and refused.code == "quota_exceeded"
    rate(ground, response_id, "down", by=msgspec.structs.replace(LOCAL_PRINCIPAL, key_id="k0"))
    assert [each for each in shown(ground) if each[1] == "down"] == [("k0", "down", "")]


@pytest.mark.parametrize("reason", ["a\0b", "a\ud800b"])
def test_a_reason_that_no_store_can_hold_is_refused_before_anything_is_written(ground: Ground, reason: str) -> None:
    response_id = answered(ground)
    command = cm.FeedbackSet(id=ground.name(), session=SESSION, response_id=response_id, rating="down", reason=reason)
    made = ground.input(inputs_and_effects.Command(LOCAL_PRINCIPAL, command, b""))
    assert not isinstance(made.answer, cm.Ok) and made.answer is not None and made.answer.code == "invalid_text"
    assert made.records == [] and made.reviews == []


def test_only_an_answer_that_has_ended_is_rated(ground: Ground) -> None:
    response_id = ground.say().response_id
    assert response_id is not None
    for rated, code in ((response_id, "response_in_progress"), (ResponseId("r"), "response_not_found")):
        command = cm.FeedbackSet(id=ground.name(), session=SESSION, response_id=rated, rating="up")
        ground.refused(command, code)
    assert not any(isinstance(record.event, FeedbackUpdated) for record in ground.records)
