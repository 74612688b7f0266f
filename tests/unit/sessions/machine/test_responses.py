"""Which model writes a response, in old logs too, and what its events carry; see also `tests/golden/machine`."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET

from sessions.machine import event_writer
from sessions.machine.state import pack_state, replay, unpack_state
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.journal_types import Loaded
from sessions.model.types import ResponseId, Tool
from tests.support.machine.machine_fixture import SESSION, TERMINAL, Ground

SMALL = "sim-small"
TOOL = Tool(name="look_up", parameters={"type": "object"})


@pytest.fixture
def ground() -> Ground:
    made = Ground(smaller_model=SMALL)
    made.create(tools=(TOOL,))
    return made


def bodies(ground: Ground, response_id: ResponseId | None) -> list[ev.ResponseBody]:
    kinds = ev.ResponseQueued | ev.ResponseCreated | TERMINAL
    events = [record.event for record in ground.records]
    return [each.response for each in events if isinstance(each, kinds) and each.response_id == response_id]


def models(ground: Ground, response_id: ResponseId | None) -> list[str]:
    return [body.model for body in bodies(ground, response_id)]


def writes(ground: Ground, response_id: ResponseId | None) -> str:
    """Whom the machine would have write a response, "" for the session's own model."""
    assert response_id is not None
    return ground.machine.other_model(ground.state.open[response_id])


def test_a_log_from_before_there_were_smaller_models_is_read_as_it_was() -> None:
    ground = Ground()
    ground.create()
    response = ground.say().response_id
    assert response is not None
    assert bodies(ground, response)[0].model == "sim" and writes(ground, response) == ""
    assert replay(Loaded(ground.head(), None, tuple(ground.records), (), True)).open[response].body.model == "sim"


def test_a_snapshot_from_before_there_were_smaller_models_goes_on_with_the_sessions_own() -> None:
    ground = Ground(smaller_model=SMALL)
    ground.create(tools=(TOOL,))
    response = ground.say().response_id
    assert response is not None
    ground.write(response, event_writer.CallBegin("look_up"), event_writer.CallArguments("{}"))
    ground.finish(response)
    body = msgspec.msgpack.decode(pack_state(ground.state))
    for waiting in body["awaiting"].values():
        del waiting["model"]
    state = unpack_state(msgspec.msgpack.encode(body))
    assert state is not None and [turn.model for turn in state.awaiting.values()] == [""]
    ground.machine.state.awaiting = state.awaiting
    (call,) = [each for turn in state.awaiting.values() for each in turn.missing]
    answered = ground.ok(cm.ToolOutput(id=ground.name(), session=SESSION, call_id=call, output="42"))
    assert models(ground, answered.response_id) == ["sim"] and writes(ground, answered.response_id) == ""


def test_deltas_carry_the_usage_so_far_where_the_request_says_so() -> None:
    for request, counted in (({"continuous_usage_stats": True}, True), ({}, False)):
        ground = Ground()
        ground.create()
        items = (cm.NewMessage(content="hello"),)
        turn = cm.TurnCreate(id=ground.name(), session=SESSION, items=items, request=request)
        response = ground.ok(turn).response_id
        assert response is not None
        ground.machine.prompted(response, 5, 3)
        ground.write(response, event_writer.Text("one"), event_writer.Text("two"))
        ground.text(response)
        ground.answer(response)
        deltas = [record.event for record in ground.records if isinstance(record.event, ev.OutputTextDelta)]
        shown = [(each.usage.cached_tokens, each.usage.output_tokens) for each in deltas if each.usage is not UNSET]
        assert shown == ([(3, 2), (3, 3), (3, 4)] if counted else [])
        assert all(each.usage.input_tokens == 5 for each in deltas if each.usage is not UNSET)
