"""A whole turn in one command: the session that it makes, the history that it brings, the turn that it goes on with."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from sessions.machine.event_writer import CallArguments, CallBegin
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.types import CallId, FunctionCall, Message, OutputText, ResponseId, Tool
from tests.support.machine.machine_fixture import SESSION, Ground

LOOK = Tool(name="look", parameters={"type": "object"})


@pytest.fixture
def ground() -> Ground:
    return Ground()


def turn(ground: Ground, *items: cm.NewItem, **more: Any) -> cm.TurnCreate:
    return cm.TurnCreate(id=ground.name(), session=SESSION, items=items, **more)


def asked(content: str = "hello") -> cm.NewMessage:
    return cm.NewMessage(role="user", content=content)


def waiting_for_tools(ground: Ground) -> tuple[ResponseId, list[CallId]]:
    ground.create(tools=(LOOK,))
    response_id = ground.say().response_id
    assert response_id is not None
    ground.write(response_id, CallBegin("look"), CallArguments("{}"), CallBegin("look"), CallArguments("{}"))
    ground.finish(response_id)
    return response_id, list(ground.state.awaiting[response_id].missing)


def test_it_makes_the_session_with_its_settings(ground: Ground) -> None:
    ground.refused(turn(ground, asked()), "session_not_found")
    ground.ok(turn(ground, asked(), create=cm.SessionSettings(instructions="be brief", listed=False)))
    info = ground.state.info
    assert info is not None and info.instructions == "be brief" and not ground.state.listed
    assert len(ground.state.open) == 1


def test_a_history_becomes_a_branch_of_its_items(ground: Ground) -> None:
    ground.create()
    call = cm.NewCall(call_id=CallId("c"), name="look", arguments="{}")
    output = cm.NewOutput(call_id=CallId("c"), output="there")
    ground.ok(turn(ground, asked(), cm.NewMessage(role="assistant", content="well"), call, output, parent_id=None))
    items = list(ground.state.items.values())
    assert [item.parent_id for item in items] == [None, *(item.id for item in items[:-1])]
    answer = items[1]
    assert isinstance(answer, Message) and answer.content == (OutputText("well"),)
    assert isinstance(items[2], FunctionCall) and items[2].call_id == "c"


def test_settings_are_written_only_where_they_change(ground: Ground) -> None:
    ground.create(instructions="be brief")
    ground.ok(turn(ground, asked(), instructions="be brief", respond=False))
    assert not any(isinstance(record.event, ev.SessionUpdated) for record in ground.records)
    ground.ok(turn(ground, asked(), instructions="be long", tools=(LOOK,), respond=False))
    info = ground.state.info
    assert info is not None and (info.instructions, info.tools) == ("be long", (LOOK,))


def test_it_goes_on_from_a_response_that_has_ended(ground: Ground) -> None:
    ground.create()
    response_id = ground.say().response_id
    assert response_id is not None
    ground.refused(turn(ground, asked(), after_response=response_id), "response_in_progress")
    ground.refused(turn(ground, asked(), after_response=ResponseId("r")), "response_not_found")
    ground.answer(response_id)
    item_id = ground.ok(turn(ground, asked(), after_response=response_id)).item_id
    assert item_id is not None
    assert ground.state.items[item_id].parent_id == ground.state.answers[response_id].items[-1]


def test_what_follows_a_response_without_output_stands_where_that_would_have_stood(ground: Ground) -> None:
    ground.create()
    said = ground.say()
    assert said.response_id is not None
    ground.cancel(said.response_id)
    before = ground.state.items.copy()
    ok = ground.ok(turn(ground, asked(), after_response=said.response_id))
    added = [item for name, item in ground.state.items.items() if name not in before]
    assert added[0].parent_id == said.item_id and ok.response_id is not None
    ground.state.answers[said.response_id].parent = UNSET  # as of one that never began
    ground.refused(turn(ground, asked(), after_response=said.response_id), "invalid_request")


def test_a_response_that_waited_and_was_cancelled_is_refused_as_what_a_turn_goes_on_from(ground: Ground) -> None:
    ground.create()
    first, waits = ground.say().response_id, ground.say("later", queue=True).response_id
    assert first is not None and waits is not None
    refused = ground.refused(turn(ground, asked(), after_response=waits), "response_in_progress")
    assert refused.retryable
    ground.cancel(waits)
    ground.answer(first)
    refused = ground.refused(turn(ground, asked(), after_response=waits), "invalid_request")
    assert refused.status == 400 and "never began" in refused.public_message
    ground.check_folding(3)


def test_a_turn_goes_on_from_the_words_of_a_response_that_was_taken_up(ground: Ground) -> None:
    response_id, missing = waiting_for_tools(ground)
    steer = cm.ResponseSteer(id=ground.name(), session=SESSION, response_id=response_id, content="shorter")
    steered = ground.ok(steer)
    for call_id in missing:
        ground.ok(cm.ToolOutput(id=ground.name(), session=SESSION, call_id=call_id, output="found"))
    (successor,) = ground.state.open
    ground.answer(successor)
    ok = ground.ok(turn(ground, asked(), after_response=steered.response_id))
    assert ok.item_id is not None and ground.state.items[ok.item_id].parent_id == steered.item_id
    ground.check_folding(3)


def test_outputs_go_on_with_the_turn_that_waits_for_all_of_them(ground: Ground) -> None:
    response_id, (first, second) = waiting_for_tools(ground)
    outputs = [cm.NewOutput(call_id=call_id, output="there") for call_id in (first, second)]
    some, whole = (turn(ground, *given, after_response=response_id) for given in (outputs[:1], outputs))
    assert not ground.machine.continues_turn(some) and ground.machine.continues_turn(whole)
    ground.refused(turn(ground, asked(), after_response=response_id), "tools_pending")
    assert str(second) in ground.refused(some, "invalid_request").public_message
    following = ground.ok(whole).response_id
    assert list(ground.state.open) == [following] and not ground.state.awaiting


def test_outputs_without_a_response_let_the_next_in_line_begin(ground: Ground) -> None:
    response_id, missing = waiting_for_tools(ground)
    queued = ground.say(queue=True).response_id
    outputs = [cm.NewOutput(call_id=call_id, output="there") for call_id in missing]
    ground.ok(turn(ground, *outputs, after_response=response_id, respond=False))
    assert list(ground.state.open) == [queued]
