"""Programs that call the session's other server tools: their calls in the log, and the answers to them.

Functions over a `StepBuilder`. A call of a program is a server call like any other (approval, intent, sending), except
that it is on no branch, because the model has not made it, and that its output goes to the program. Invariants: before
a program's call is sent, the log has the call, and what the program needs to be resumed; a program has one call at a
time; an answer is journaled before the program reads it.
"""

from __future__ import annotations

from sessions.machine.inputs_and_effects import ProgramCalling, RunTools
from sessions.machine.step_builder import StepBuilder
from sessions.model import events as ev
from sessions.model.types import CallId, FunctionCall, ItemId, ResponseId


def call_tool(build: StepBuilder, input: ProgramCalling) -> None:
    """Writes that a program has come to a call of its own; a repeat of the input writes nothing."""
    waiting = build.state.awaiting.get(input.response_id)
    call = waiting.server.calls.get(input.call_id) if waiting is not None and waiting.server is not None else None
    if waiting is None or waiting.server is None or call is None or not waiting.is_due(call) or not call.execution_id:
        return
    made = waiting.server.made_by(call.call_id)
    if any(call.output is None for call in made):
        return
    event = ev.ProgramCalled(
        response_id=input.response_id,
        call_id=CallId(f"{call.call_id}.{len(made) + 1}"),
        program_call_id=call.call_id,
        item_id=_item_of(build, call.call_id),
        name=input.name,
        arguments=input.arguments,
    )
    build.put(event, ev.Private(program=input.point))
    build.out.effects.append(RunTools(input.response_id))


def put_answer(build: StepBuilder, response_id: ResponseId, call_id: CallId, output: str, *, is_error: bool) -> None:
    """Writes the answer to a program's call, and has the program go on."""
    returned = ev.ProgramReturned(response_id=response_id, call_id=call_id, is_error=is_error)
    build.put(returned, ev.Private(output=output))
    build.out.effects.append(RunTools(response_id))


def _item_of(build: StepBuilder, call_id: CallId) -> ItemId:
    for item in reversed(build.state.items.values()):
        if isinstance(item, FunctionCall) and item.call_id == call_id:
            return item.id
    return ItemId("")  # it was taken out of the tree
