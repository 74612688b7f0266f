"""What a whole turn in one command goes on with; all else of it is in `tests/golden/machine`."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from sessions.machine.event_writer import CallArguments, CallBegin
from sessions.model import commands as cm
from sessions.model.types import CallId, ResponseId, Tool
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


def test_a_response_that_stands_nowhere_is_refused_as_what_a_turn_goes_on_from(ground: Ground) -> None:
    ground.create()
    said = ground.say()
    assert said.response_id is not None
    ground.cancel(said.response_id)
    ground.state.answers[said.response_id].parent = UNSET  # as of one that never began
    ground.refused(turn(ground, asked(), after_response=said.response_id), "invalid_request")


def test_it_goes_on_with_a_turn_where_it_has_all_of_its_outputs(ground: Ground) -> None:
    response_id, (first, second) = waiting_for_tools(ground)
    outputs = [cm.NewOutput(call_id=call_id, output="there") for call_id in (first, second)]
    some, whole = (turn(ground, *given, after_response=response_id) for given in (outputs[:1], outputs))
    assert not ground.machine.continues_turn(some) and ground.machine.continues_turn(whole)
    assert str(second) in ground.refused(some, "invalid_request").public_message
