"""Calls that the server carries out itself: the intent before one is sent, its output, and how the turn goes on.

Functions over a `StepBuilder`. Invariants: no call is sent before its intent is durable (`SendToolCall` comes with the
step that writes it); a call has one output; the last output that was missing begins the turn's next response, in the
same step. `sessions.actor.tool_runner` decides what is sent, and what is sent again after a crash.
"""

from __future__ import annotations

from msgspec import UNSET

from sessions.machine.inputs_and_effects import (
    RunTools,
    SendToolCall,
    StopTools,
    ToolAnswered,
    ToolApprovalNeeded,
    ToolDeadline,
    ToolProgressed,
    ToolStarting,
)
from sessions.machine.responses import (
    begin,
    continuation,
    continuation_id_of,
    derive,
    end_tool_turn,
    put_missing_output,
    take_up,
)
from sessions.machine.state import Answer, Awaiting, State
from sessions.machine.step_builder import StepBuilder
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import Conflict, NotFound
from sessions.model.types import CallId, FunctionCall, FunctionCallOutput, ItemId, Principal, ResponseId


def start_call(build: StepBuilder, input: ToolStarting) -> None:
    """Writes that a call is about to be sent, and asks to send it. A repeat of the input does nothing."""
    waiting = build.state.awaiting.get(input.response_id)
    call = waiting.due_call(input.call_id) if waiting is not None else None
    if call is None or call.execution_id:
        return
    build.put(
        ev.ToolCallStarted(
            response_id=input.response_id, call_id=call.call_id, name=call.name, execution_id=input.execution_id
        )
    )
    build.out.effects.append(SendToolCall(input.response_id, call.call_id))


def request_approval(build: StepBuilder, input: ToolApprovalNeeded) -> None:
    """Writes that a call waits for somebody's approval. A repeat of the input writes nothing."""
    waiting = build.state.awaiting.get(input.response_id)
    call = waiting.due_call(input.call_id) if waiting is not None else None
    if call is None or call.approval or call.execution_id:
        return
    build.put(ev.ToolApprovalRequested(response_id=input.response_id, call_id=call.call_id, name=call.name))


def approve_call(build: StepBuilder, principal: Principal, command: cm.ToolApprove) -> cm.Ok:
    """Approves a call that waits for approval, which is then carried out, or denies it, which answers it with a
    refusal. Raises NotFound, Conflict."""
    state, call_id = build.state, command.call_id
    waiting = next((each for each in state.awaiting.values() if each.due_call(call_id) is not None), None)
    call = waiting.due_call(call_id) if waiting is not None else None
    if waiting is None or call is None or not call.approval:
        raise NotFound("call_not_found", f"No call {call_id!r} waits for an approval.", param="call_id")
    if call.approval == "approved":
        raise Conflict("call_answered", f"The call {call_id!r} is approved.", param="call_id")
    decided = ev.ToolApprovalDecided(
        response_id=waiting.response_id, call_id=call_id, approved=command.approved, by=principal.id
    )
    build.put(decided)
    offset, response_id = state.top, waiting.response_id
    denied = "approval_denied: the user did not agree to this call."
    if command.approved:
        build.out.effects.append(RunTools(response_id))
    else:
        put_missing_output(build, waiting, call_id, denied)
        if not waiting.missing:
            _go_on(build, waiting)
    return cm.Ok(id=command.id, response_id=response_id, offset=offset)


def note_progress(build: StepBuilder, input: ToolProgressed) -> None:
    """Writes how far a running call has come."""
    waiting = build.state.awaiting.get(input.response_id)
    call = waiting.due_call(input.call_id) if waiting is not None else None
    if call is None or not call.execution_id:
        return
    build.put(
        ev.ToolCallProgress(
            response_id=input.response_id,
            call_id=input.call_id,
            progress=input.progress,
            total=input.total,
            message=input.message,
        )
    )


def answer_call(build: StepBuilder, input: ToolAnswered) -> None:
    """Writes a call's output; the last missing one begins the turn's next response."""
    waiting = build.state.awaiting.get(input.response_id)
    call = waiting.due_call(input.call_id) if waiting is not None else None
    if waiting is None or call is None:
        return
    item = FunctionCallOutput(
        id=ItemId(derive("fco", build.state.key.session, waiting.response_id, input.call_id)),
        parent_id=waiting.last,
        call_id=input.call_id,
        output=input.output,
        is_error=input.is_error,
        status="completed" if input.whole else "incomplete",
        created_at=build.now,
        files=input.files or UNSET,
    )
    build.put_item(item, input.prepared)
    if not waiting.missing:
        _go_on(build, waiting)


def time_out(build: StepBuilder, input: ToolDeadline) -> None:
    """Ends the wait for a turn's tools. If they are server tools, the turn goes on without their outputs."""
    waiting = build.state.awaiting.get(input.response_id)
    if waiting is None:
        return
    if waiting.server is None or not waiting.server.calls.keys() >= set(waiting.missing):
        end_tool_turn(build, waiting, "tool_timeout")
        return
    build.out.effects.append(StopTools(waiting.response_id))
    for call_id in list(waiting.missing):
        put_missing_output(build, waiting, call_id, "tool_timeout")
    _go_on(build, waiting)


def _go_on(build: StepBuilder, waiting: Awaiting) -> None:
    assert waiting.server is not None
    name = continuation_id_of(build.state.key, waiting.response_id)
    parent = take_up(build, waiting.response_id, waiting.last, name)
    begin(build, continuation(waiting, waiting.server, name, parent))


def server_call_conflict(call_id: CallId) -> Conflict:
    """Returns the error for a client that sends an output for a server tool's call."""
    return Conflict("call_answered", f"The server itself carries the call {call_id!r} out.", param="call_id")


def continuations_of(state: State, response_id: ResponseId) -> list[ResponseId]:
    """Returns the responses that continued an answer once server tools had given their outputs, in order."""
    names: list[ResponseId] = []
    while (answer := state.answers.get(response_id)) is not None and answer.continued_by is not None:
        response_id = answer.continued_by
        if response_id not in state.open and response_id not in state.answers:
            break  # its tools have not answered yet
        names.append(response_id)
    return names


def newest_of(state: State, response_id: ResponseId) -> ResponseId:
    """Returns the newest response of an answer: the last one that continued it, or the response itself."""
    return next(iter(reversed(continuations_of(state, response_id))), response_id)


def outputs_of(state: State, answer: Answer) -> list[ItemId]:
    """Returns the ids of the outputs of an answer's server tool calls, which are below the answer, one below the other.
    (A client's history may have calls with the same ids elsewhere.)"""
    calls = {
        item.call_id
        for name in answer.items
        if isinstance(item := state.items.get(name), FunctionCall) and item.server is True
    }
    names, last = list[ItemId](), answer.items[-1] if answer.items else None
    for item in state.items.values() if calls else ():
        if isinstance(item, FunctionCallOutput) and item.call_id in calls and item.parent_id == last:
            calls.remove(item.call_id)
            names.append(item.id)
            last = item.id
    return names


def arguments_of(state: State, response_id: ResponseId, call_id: CallId) -> str | None:
    """Returns the arguments of a response's server tool call; None if the call was deleted from the tree."""
    answer = state.answers.get(response_id)
    for name in answer.items if answer is not None else ():
        item = state.items.get(name)
        if isinstance(item, FunctionCall) and item.call_id == call_id and item.server is True:
            return item.arguments
    return None
