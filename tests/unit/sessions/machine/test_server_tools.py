"""Calls of server tools in the machine: intent, output, what goes on, and what ends without them."""

from __future__ import annotations

from typing import Any

from sessions.machine.client_state import client_state
from sessions.machine.event_writer import CallArguments, CallBegin
from sessions.machine.inputs_and_effects import (
    RunTools,
    SendToolCall,
    StopTools,
    ToolAnswered,
    ToolApprovalNeeded,
    ToolDeadline,
    ToolStarting,
)
from sessions.machine.responses import OUTCOME_UNKNOWN, TOOL_ROUNDS_MAX, continuation_id_of
from sessions.machine.server_tools import continuations_of, newest_of
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.types import CallId, FunctionCallOutput, ResponseId, Tool
from tests.support.machine.machine_fixture import KEY, SESSION, Ground

OURS, THEIRS = Tool(name="book", server=True), Tool(name="look")


def called(*names: str, **more: Any) -> tuple[Ground, ResponseId, list[CallId]]:
    """A response that has called these and ended."""
    ground = Ground()
    ground.create(tools=(OURS, THEIRS))
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


def start(ground: Ground, response_id: ResponseId, call_id: CallId) -> list[Any]:
    return ground.input(ToolStarting(response_id, call_id, "x1")).effects


def answer(ground: Ground, response_id: ResponseId, call_id: CallId, output: str = "booked") -> None:
    ground.input(ToolAnswered(response_id=response_id, call_id=call_id, output=output))


def outputs(ground: Ground) -> list[str]:
    return [item.output for item in ground.state.items.values() if isinstance(item, FunctionCallOutput)]


def test_an_intent_stands_before_the_call_is_sent_and_the_last_output_goes_on() -> None:
    ground, response_id, (first, second) = called("book", "book")
    assert start(ground, response_id, first) == [SendToolCall(response_id, first)]
    assert isinstance(ground.records[-1].event, ev.ToolCallStarted)
    assert start(ground, response_id, first) == [], "once"
    answer(ground, response_id, first)
    start(ground, response_id, second)
    assert not ground.state.open
    answer(ground, response_id, second)
    answer(ground, response_id, second, "again")
    name = continuation_id_of(KEY, response_id)
    assert list(ground.state.open) == [name] and outputs(ground) == ["booked", "booked"]
    assert ground.state.answers[response_id].continued_by == name == newest_of(ground.state, response_id)
    ground.answer(name, "Done.")
    ground.check()
    ground.check_folding(len(ground.records) // 2)
    assert not ground.state.busy and continuations_of(ground.state, response_id) == [name]


def test_calls_of_clients_wait_for_clients() -> None:
    ground, response_id, (ours, theirs) = called("book", "look")
    assert ground.state.answers[response_id].continued_by is None
    start(ground, response_id, ours)
    answer(ground, response_id, ours)
    assert not ground.state.open
    ok = ground.ok(cm.ToolOutput(id=ground.name(), session=SESSION, call_id=theirs, output="seen"))
    assert ok.response_id is not None and list(ground.state.open) == [ok.response_id]
    ground.check()


def test_the_turn_ends_for_its_readers_when_it_is_cancelled_while_a_tool_runs() -> None:
    ground, response_id, (first, *_) = called("book", "book")
    start(ground, response_id, first)
    ground.cancel(response_id)
    name = continuation_id_of(KEY, response_id)
    assert outputs(ground) == [f"{OUTCOME_UNKNOWN} (cancelled)", "cancelled"] and not ground.state.busy
    assert ground.state.answers[name].reason == "cancelled" and not ground.running
    answer(ground, response_id, first, "late")
    assert len(outputs(ground)) == 2
    ground.check()


def approve(ground: Ground, call_id: CallId, *, approved: bool = True) -> cm.ToolApprove:
    return cm.ToolApprove(id=ground.name(), session=SESSION, call_id=call_id, approved=approved)


def test_a_call_that_waits_for_an_approval_is_carried_out_once_and_only_then() -> None:
    ground, response_id, (first, second) = called("book", "book")
    ground.refused(approve(ground, first), "call_not_found")
    for each in (first, second, first):
        ground.input(ToolApprovalNeeded(response_id, each))
    (waiting,) = client_state(ground.state)["awaiting"]
    assert waiting["approval"] == [first, second]
    assert isinstance(ground.do(approve(ground, first)), cm.Ok)
    ground.refused(approve(ground, first, approved=False), "call_answered")
    step = ground.activate()
    assert RunTools(response_id) in step.effects, "the approval is in the log"
    server = ground.state.awaiting[response_id].server
    assert server is not None and server.calls[first].approval == "approved"
    start(ground, response_id, first)
    answer(ground, response_id, first)
    ok = ground.ok(approve(ground, second, approved=False))
    assert ok.response_id == response_id and outputs(ground)[1].startswith("approval_denied")
    assert list(ground.state.open) == [continuation_id_of(KEY, response_id)]
    decided = [r.event for r in ground.records if isinstance(r.event, ev.ToolApprovalDecided)]
    assert [each.approved for each in decided] == [True, False]
    ground.check()
    ground.check_folding(len(ground.records) // 2)


def test_no_client_says_what_a_server_tool_has_answered() -> None:
    ground, response_id, (only, *_) = called("book", "book")
    forged = cm.ToolOutput(id=ground.name(), session=SESSION, call_id=only, output="paid")
    ground.refused(forged, "call_answered")
    items = (cm.NewOutput(call_id=only, output="paid"),)
    turn = cm.TurnCreate(id=ground.name(), session=SESSION, items=items, after_response=response_id)
    ground.refused(turn, "call_answered")
    later = cm.TurnCreate(
        id=ground.name(), session=SESSION, items=(cm.NewMessage(content="and?"),), after_response=response_id
    )
    assert ground.refused(later, "tools_pending").retryable
    assert outputs(ground) == []


def test_a_deadline_goes_on_without_the_outputs() -> None:
    ground, response_id, (only,) = called("book")
    start(ground, response_id, only)
    step = ground.input(ToolDeadline(response_id))
    assert StopTools(response_id) in step.effects and outputs(ground) == [f"{OUTCOME_UNKNOWN} (tool_timeout)"]
    assert list(ground.state.open) == [continuation_id_of(KEY, response_id)]
    ground.check()


def test_another_activation_goes_on_with_what_the_log_says() -> None:
    ground, response_id, (first, *_) = called("book", "book")
    start(ground, response_id, first)
    step = ground.activate()
    assert RunTools(response_id) in step.effects
    waiting = ground.state.awaiting[response_id].server
    assert waiting is not None and [each.execution_id for each in waiting.calls.values()] == ["x1", ""]


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


def test_an_answer_is_erased_with_all_that_went_on_with_it() -> None:
    ground, response_id, (only,) = called("book")
    ground.refused(cm.ResponseErase(id=ground.name(), session=SESSION, response_id=response_id), "tools_pending")
    start(ground, response_id, only)
    answer(ground, response_id, only, "a secret")
    name = newest_of(ground.state, response_id)
    ground.refused(cm.ResponseErase(id=ground.name(), session=SESSION, response_id=response_id), "response_in_progress")
    ground.answer(name, "another secret")
    ground.ok(cm.ResponseErase(id=ground.name(), session=SESSION, response_id=response_id))
    assert "secret" not in str(ground.state.items)
