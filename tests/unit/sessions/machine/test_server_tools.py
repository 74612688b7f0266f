"""Other activations of turns with server tools, and their rounds; more of such calls is in `tests/golden/machine`."""

from __future__ import annotations

from typing import Any

from sessions.machine.event_writer import CallArguments, CallBegin
from sessions.machine.inputs_and_effects import RunTools, ToolAnswered
from sessions.machine.responses import TOOL_ROUNDS_MAX
from sessions.model.types import CallId, ResponseId, Tool
from tests.support.machine.machine_fixture import Ground

OURS = Tool(name="book", server=True)


def called(*names: str, **more: Any) -> tuple[Ground, ResponseId, list[CallId]]:
    """A response that has called these and ended."""
    ground = Ground()
    ground.create(tools=(OURS,))
    response_id = ground.say("go", **more).response_id
    assert response_id is not None
    calls = call(ground, response_id, *names)
    return ground, response_id, calls


def call(ground: Ground, response_id: ResponseId, *names: str) -> list[CallId]:
    for name in names:
        ground.write(response_id, CallBegin(name), CallArguments("{}"))
    step = ground.finish(response_id)
    assert (RunTools(response_id) in step.effects) == ("book" in names)
    return list(ground.state.awaiting[response_id].missing)


def answer(ground: Ground, response_id: ResponseId, call_id: CallId) -> None:
    ground.input(ToolAnswered(response_id=response_id, call_id=call_id, output="booked"))


def test_after_so_many_rounds_no_tool_may_be_called() -> None:
    ground, response_id, (only,) = called("book", tool_choice="required")
    for round in range(1, TOOL_ROUNDS_MAX + 1):
        answer(ground, response_id, only)
        (response_id,) = ground.state.open
        chosen = ground.state.open[response_id].sampling.tool_choice
        assert chosen == ("none" if round == TOOL_ROUNDS_MAX else None)
        if round < TOOL_ROUNDS_MAX:
            (only,) = call(ground, response_id, "book")
    ground.check()
