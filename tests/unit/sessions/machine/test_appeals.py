"""Review cases in a session's log: opened for messages, appealed against once, decided once."""

from __future__ import annotations

import msgspec
import pytest

from sessions.machine import inputs_and_effects
from sessions.machine.appeals import decision_notice
from sessions.model import commands as cm
from sessions.model.errors import BadInput, SessileError
from sessions.model.reviews import APPEALS_MAX, Case
from sessions.model.types import LOCAL_PRINCIPAL, ResponseId, Usage
from sessions.model.verdicts import Finding
from tests.support.machine.machine_fixture import SESSION, Ground

BLOCKED = Finding(category="weapons/keyword", action="block", start=0, end=5, review=True)


@pytest.fixture
def ground() -> Ground:
    made = Ground()
    made.create()
    return made


def step(ground: Ground, command: cm.ActorCommand, **more: object) -> inputs_and_effects.Step:
    input = inputs_and_effects.Command(LOCAL_PRINCIPAL, command, cm.command_digest(command), **more)  # type: ignore[arg-type]
    return ground.input(input)


def withheld_answer(ground: Ground) -> ResponseId:
    response_id = ground.say().response_id
    assert response_id is not None
    generation, usage = ground.running.pop(response_id), Usage(1, 1)
    ended = inputs_and_effects.GenerationFinished(response_id, generation, "content_filter", usage, findings=(BLOCKED,))
    ground.input(ended)
    return response_id


def appeal(ground: Ground, **about: object) -> cm.ReviewAppeal:
    return cm.ReviewAppeal(id=ground.name(), session=SESSION, note="why", **about)  # type: ignore[arg-type]


def test_a_refused_message_opens_its_case_though_nothing_is_written(ground: Ground) -> None:
    command = cm.MessageCreate(id=ground.name(), session=SESSION, content="a gun")
    refused = BadInput("content_filter", "no")
    made = step(ground, command, refused=refused, findings=(BLOCKED,))
    assert made.records == [] and made.answer is refused
    (case,) = made.reviews
    assert (case.direction, case.cause, case.item_id) == ("input", "policy", None)


def test_a_case_of_a_message_that_went_on_names_its_item(ground: Ground) -> None:
    command = cm.MessageCreate(id=ground.name(), session=SESSION, content="a gun")
    flagged = msgspec.structs.replace(BLOCKED, action="flag")
    made = step(ground, command, findings=(flagged, msgspec.structs.replace(flagged, review=False)))
    assert isinstance(made.answer, cm.Ok)
    assert [case.item_id for case in made.reviews] == [made.answer.item_id]


def test_there_is_one_appeal_in_each_case(ground: Ground) -> None:
    response_id = withheld_answer(ground)
    made = step(ground, appeal(ground, response_id=response_id))
    assert isinstance(made.answer, cm.Ok) and made.answer.review_id == made.reviews[0].id
    assert made.reviews[0].note == "why" and ground.state.reviews[made.reviews[0].id].appealed
    again = step(ground, appeal(ground, response_id=response_id)).answer
    assert isinstance(again, SessileError) and again.code == "appealed_already"


def test_a_note_that_no_store_can_hold_is_refused_before_anything_is_written(ground: Ground) -> None:
    """It ended the session's actor, with every answer that was being written."""
    response_id = withheld_answer(ground)
    command = cm.ReviewAppeal(id=ground.name(), session=SESSION, note="a\0b", response_id=response_id)
    made = step(ground, command)
    assert isinstance(made.answer, BadInput) and made.answer.code == "invalid_text"
    assert made.records == [] and made.reviews == []


@pytest.mark.parametrize(
    ("about", "code"),
    [
        ({}, "invalid_request"),
        ({"response_id": ResponseId("r"), "content": "a gun"}, "invalid_request"),
        ({"response_id": ResponseId("r")}, "response_not_found"),
        ({"content": "a rose"}, "not_withheld"),
    ],
)
def test_appeals_against_nothing(ground: Ground, about: dict[str, object], code: str) -> None:
    answer = step(ground, appeal(ground, **about)).answer
    assert isinstance(answer, SessileError) and answer.code == code


def test_an_appeal_waits_for_the_end_of_the_answer(ground: Ground) -> None:
    response_id = ground.say().response_id
    answer = step(ground, appeal(ground, response_id=response_id)).answer
    assert isinstance(answer, SessileError) and (answer.code, answer.retryable) == ("response_in_progress", True)


def test_a_session_has_a_limit_of_appeals(ground: Ground) -> None:
    for _ in range(APPEALS_MAX):
        answer = step(ground, appeal(ground, content="a gun"), blocked=True, findings=(BLOCKED,)).answer
        assert isinstance(answer, cm.Ok)
    answer = step(ground, appeal(ground, content="a gun"), blocked=True, findings=(BLOCKED,)).answer
    assert isinstance(answer, SessileError) and answer.code == "quota_exceeded"


def test_a_decision_is_written_once(ground: Ground) -> None:
    response_id = withheld_answer(ground)
    (case,) = step(ground, appeal(ground, response_id=response_id)).reviews
    decided: Case = msgspec.structs.replace(case, state="decided", outcome="overturned", decisions=1)
    principal, notice = decision_notice(decided)
    assert not ground.ok(notice, principal).noop
    assert ground.state.reviews[case.id].outcome == "overturned"
    repeat = msgspec.structs.replace(notice, id=ground.name())
    assert ground.ok(repeat, principal).noop
