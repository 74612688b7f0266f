"""Creating and updating a session, and deleting an item; deletion and erasure are in `tests/golden/machine`."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from sessions.machine.client_state import client_state
from sessions.machine.inputs_and_effects import TitleWritten
from sessions.model import commands as cm
from sessions.model.types import Tool
from tests.support.machine.machine_fixture import SESSION, Ground

TOOL = Tool(name="look", parameters={"type": "object"})


def test_tools_that_the_model_cannot_call_are_refused_and_write_nothing() -> None:
    ground = Ground(takes_tools=False)
    ground.refused(cm.SessionCreate(id=ground.name(), session=SESSION, tools=(TOOL,)), "unsupported_parameter")
    assert not ground.records
    ground.create()
    ground.refused(cm.SessionUpdate(id=ground.name(), session=SESSION, tools=(TOOL,)), "unsupported_parameter")
    ground.ok(cm.SessionUpdate(id=ground.name(), session=SESSION, tools=None))
    items = (cm.NewMessage(content="hello"),)
    turn = cm.TurnCreate(id=ground.name(), session=SESSION, tools=(TOOL,), items=items, respond=False)
    ground.refused(turn, "unsupported_parameter")
    ground.ok(msgspec.structs.replace(turn, tool_choice="none"))


def test_a_title_of_what_was_taken_back_meanwhile_is_refused() -> None:
    ground = Ground()
    ground.create()
    said = ground.say("My PIN is 4711")
    assert said.response_id is not None and said.item_id is not None
    ground.answer(said.response_id)
    read = ground.state.top
    ground.ok(cm.ItemDelete(id=ground.name(), session=SESSION, item_id=said.item_id))
    assert ground.input(TitleWritten("My PIN is 4711", read)).records == []
    ground.input(TitleWritten("Nothing of it", ground.state.top))
    assert ground.state.info is not None and ground.state.info.title == "Nothing of it"


def test_a_sessions_own_settings_hold_for_answers_that_name_none() -> None:
    ground = Ground()
    ground.create(temperature=0.0, max_output_tokens=7)
    first = ground.say().response_id
    assert first is not None
    assert (ground.state.open[first].sampling.temperature, ground.state.open[first].sampling.max_output_tokens) == (
        0,
        7,
    )
    ground.finish(first)
    own = ground.say(temperature=1.5, max_output_tokens=9).response_id
    assert own is not None
    assert (ground.state.open[own].sampling.temperature, ground.state.open[own].sampling.max_output_tokens) == (1.5, 9)
    ground.finish(own)
    ground.ok(cm.SessionUpdate(id=ground.name(), session=SESSION, temperature=None))
    info = ground.state.info
    assert info is not None and info.temperature is UNSET and info.max_output_tokens == 7
    shown = client_state(ground.state)
    assert (shown["temperature"], shown["max_output_tokens"]) == (None, 7)
