"""Calls of programs in the machine: written before they are sent, one at a time, and answered to the program."""

from __future__ import annotations

from sessions.machine.client_state import client_state
from sessions.machine.event_writer import CallArguments, CallBegin
from sessions.machine.inputs_and_effects import (
    ProgramCalling,
    RunTools,
    SendToolCall,
    Step,
    ToolAnswered,
    ToolApprovalNeeded,
    ToolStarting,
)
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.types import CallId, FunctionCallOutput, ProgramPoint, ResponseId, Tool
from tests.support.machine.machine_fixture import SESSION, Ground


def running() -> tuple[Ground, ResponseId, CallId]:
    """A program that the model has called and that runs."""
    ground = Ground()
    ground.create(tools=(Tool(name="program", server=True), Tool(name="book", server=True)))
    response_id = ground.say("go").response_id
    assert response_id is not None
    ground.write(response_id, CallBegin("program"), CallArguments('{"code": "book()"}'))
    ground.finish(response_id)
    (call_id,) = ground.state.awaiting[response_id].missing
    ground.input(ToolStarting(response_id, call_id, "x1"))
    return ground, response_id, call_id


def comes_to(ground: Ground, response_id: ResponseId, call_id: CallId, snapshot: bytes = b"here") -> Step:
    point = ProgramPoint(version="1", chain=b"c", digest=b"d", snapshot=snapshot, printed="so far")
    return ground.input(
        ProgramCalling(response_id=response_id, call_id=call_id, name="book", arguments="{}", point=point)
    )


def test_a_call_stands_in_the_log_with_what_the_program_needs_to_go_on() -> None:
    ground, response_id, program = running()
    assert comes_to(ground, response_id, program).effects == [RunTools(response_id)]
    record = ground.records[-1]
    assert isinstance(record.event, ev.ProgramCalled) and record.event.program_call_id == program
    assert record.private is not None and record.private.program is not None
    assert record.private.program.snapshot == b"here"
    assert comes_to(ground, response_id, program).effects == [], "one at a time"
    call_id = record.event.call_id
    assert ground.input(ToolStarting(response_id, call_id, "x2")).effects == [SendToolCall(response_id, call_id)]
    step = ground.input(ToolAnswered(response_id=response_id, call_id=call_id, output="booked"))
    assert step.effects == [RunTools(response_id)]
    assert not any(isinstance(item, FunctionCallOutput) for item in ground.state.items.values()), "in no branch"
    comes_to(ground, response_id, program, b"there")
    server = ground.state.awaiting[response_id].server
    assert server is not None
    first, second = server.made_by(program)
    assert first.output == "booked" and first.point is not None and not first.point.snapshot
    assert second.point is not None and second.point.snapshot == b"there"
    ground.check_folding(len(ground.records) // 2)


def test_the_end_of_a_program_is_its_output_and_nothing_comes_behind_it() -> None:
    ground, response_id, program = running()
    comes_to(ground, response_id, program)
    ground.input(ToolAnswered(response_id=response_id, call_id=program, output="stopped", is_error=True))
    (output,) = [item for item in ground.state.items.values() if isinstance(item, FunctionCallOutput)]
    assert output.output == "stopped" and not ground.state.awaiting
    before = len(ground.records)
    ground.input(ToolAnswered(response_id=response_id, call_id=CallId(f"{program}.1"), output="late"))
    comes_to(ground, response_id, program)
    assert len(ground.records) == before
    ground.check()


def test_a_call_of_a_program_may_need_an_approval() -> None:
    ground, response_id, program = running()
    comes_to(ground, response_id, program)
    name = CallId(f"{program}.1")
    ground.input(ToolApprovalNeeded(response_id, name))
    (waiting,) = client_state(ground.state)["awaiting"]
    assert waiting["approval"] == [name] and waiting["missing"] == [program]
    ground.ok(cm.ToolApprove(id=ground.name(), session=SESSION, call_id=name, approved=False))
    server = ground.state.awaiting[response_id].server
    assert server is not None
    (call,) = server.made_by(program)
    assert call.is_error and (call.output or "").startswith("approval_denied")
    assert isinstance(ground.records[-1].event, ev.ProgramReturned)


def test_a_program_that_was_cancelled_makes_no_calls() -> None:
    ground, response_id, program = running()
    comes_to(ground, response_id, program)
    ground.cancel(response_id)
    before = len(ground.records)
    ground.input(ToolStarting(response_id, CallId(f"{program}.1"), "x2"))
    assert len(ground.records) == before and not ground.state.busy
    ground.check()
