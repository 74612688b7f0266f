"""Applies the commands of a chat client: send or edit a message, respond, cancel, give a tool's output.

Functions over a `StepBuilder`. If a response cannot begin yet because its branch is busy, it waits in the session's
queue if the client has asked for that (`queue`), and is a Conflict otherwise.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from sessions.machine import item_tree
from sessions.machine.inputs_and_effects import Command, Prepared
from sessions.machine.item_tree import busy_conflict
from sessions.machine.model_routing import adopt_model
from sessions.machine.responses import (
    NewResponse,
    begin,
    end_incomplete,
    end_queued,
    end_tool_turn,
    free_tool_choice,
    inherited,
    item_ids_of,
    new_body,
    response_id_of,
    response_not_found,
    take_up,
)
from sessions.machine.server_tools import newest_of, server_call_conflict
from sessions.machine.step_builder import StepBuilder
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, Conflict, NotFound, Overloaded
from sessions.model.types import FunctionCallOutput, ItemId, Message, ResponseId, Role

QUEUE_MAX = 8

_Responding = cm.MessageCreate | cm.MessageEdit | cm.ResponseCreate


def create_message(build: StepBuilder, input: Command, command: cm.MessageCreate) -> cm.Ok:
    state, implied = build.state, command.parent_id is UNSET
    parent = item_tree.parent_of(state, command.parent_id)
    if command.queue and not command.respond:
        raise BadInput("invalid_request", "`queue` needs `respond`: only responses wait.", param="queue")
    item = _new_message(build, input, command, parent, command.role)
    blocked = item_tree.blocker(state, parent, implied=implied)
    if blocked is not None:
        return _queue(build, input, command, blocked, item)
    build.put_item(item, input.prepared)
    return _respond(build, input, command, item.id, item=item)


def edit_message(build: StepBuilder, input: Command, command: cm.MessageEdit) -> cm.Ok:
    state = build.state
    edited = state.items.get(command.item_id)
    if edited is None:
        raise NotFound("item_not_found", f"There is no item {command.item_id!r} in this session.", param="item_id")
    if not isinstance(edited, Message) or edited.role == "assistant":
        raise BadInput("invalid_request", "Only messages that were sent can be edited.", param="item_id")
    blocked = item_tree.blocker(state, edited.parent_id, implied=False)
    if blocked is not None:
        raise busy_conflict(blocked[1])
    item = _new_message(build, input, command, edited.parent_id, edited.role)
    build.put_item(item, input.prepared)
    return _respond(build, input, command, item.id, item=item)


def create_response(build: StepBuilder, input: Command, command: cm.ResponseCreate) -> cm.Ok:
    state, implied = build.state, command.parent_id is UNSET
    parent = item_tree.parent_of(state, command.parent_id)
    if implied and parent is not None:
        parent = item_tree.question(state, parent)
    blocked = item_tree.blocker(state, parent, implied=implied)
    if blocked is not None:
        return _queue(build, input, command, blocked, None)
    return _respond(build, input, command, parent)


def _new_message(
    build: StepBuilder,
    input: Command,
    command: cm.MessageCreate | cm.MessageEdit,
    parent: ItemId | None,
    role: Role,
) -> Message:
    return Message(
        id=item_ids_of(build.state.key, input.principal, command)[0],
        parent_id=parent,
        role=role,
        content=(*(input.prepared.passages if input.prepared else ()), *cm.content_parts(command.content)),
        status="completed",
        created_at=build.now,
    )


def _new_response(build: StepBuilder, input: Command, command: _Responding, parent: ItemId | None) -> NewResponse:
    return NewResponse(
        id=response_id_of(build.state.key, input.principal, command.id),
        parent=parent,
        principal=input.principal,
        sampling=cm.sampling_of(command),
        model=input.model,
        service=input.service,
    )


def _respond(
    build: StepBuilder, input: Command, command: _Responding, parent: ItemId | None, *, item: Message | None = None
) -> cm.Ok:
    """Begins the response to `parent`, if the command asks for one. The returned offset is that of `item`, which was
    just added, or that of the response if there is no item."""
    offset, response_id = build.state.top, None
    if input.adopts:
        adopt_model(build, input.adopts)
    if isinstance(command, cm.ResponseCreate) or command.respond:
        new = _new_response(build, input, command, parent)
        begin(build, new)
        response_id = new.id
        if item is None:
            offset = build.state.top - 1
    return cm.Ok(id=command.id, item_id=item.id if item else None, response_id=response_id, offset=offset)


def _queue(
    build: StepBuilder,
    input: Command,
    command: cm.MessageCreate | cm.ResponseCreate,
    blocked: tuple[ResponseId, str],
    item: Message | None,
) -> cm.Ok:
    """Queues a response behind the one that blocks its branch. Raises Conflict if the client has not asked for the
    queue."""
    after, code = blocked
    if not command.queue:
        raise busy_conflict(code)
    if len(build.state.queue) >= QUEUE_MAX:
        raise Overloaded("queue_full", f"{QUEUE_MAX} responses wait in this session already.", retry_after_ms=1_000)
    new = _new_response(build, input, command, None)
    if item is not None:
        item = msgspec.structs.replace(item, parent_id=None, status="queued")
    prepared = (input.prepared if item is not None else None) or Prepared(b"", "")
    build.put(
        ev.ResponseQueued(response_id=new.id, sequence_number=0, response=new_body(build, new, "queued"), item=item),
        ev.Private(
            after=after,
            principal=new.principal,
            sampling=new.sampling,
            tokens=prepared.tokens,
            fingerprint=prepared.fingerprint,
        ),
    )
    offset = build.state.top
    return cm.Ok(id=command.id, item_id=item.id if item else None, response_id=new.id, offset=offset)


def cancel_response(build: StepBuilder, command: cm.ResponseCancel) -> cm.Ok:
    """Ends a response, or the turn that waits for its tools. A response that has ended already is not changed. Raises
    NotFound."""
    state, response_id = build.state, newest_of(build.state, command.response_id)
    open_ = state.open.get(response_id)
    queued = next((waiting for waiting in state.queue if waiting.body.id == response_id), None)
    noop = False
    if open_ is not None:
        end_incomplete(build, open_, "cancelled")
    elif queued is not None:
        end_queued(build, queued, "cancelled")
    elif response_id in state.awaiting:
        end_tool_turn(build, state.awaiting[response_id], "cancelled")
    elif response_id in state.answers:
        noop = True
    else:
        raise response_not_found(response_id)
    return cm.Ok(id=command.id, response_id=response_id, offset=state.top, noop=noop)


def add_tool_output(build: StepBuilder, input: Command, command: cm.ToolOutput) -> cm.Ok:
    """Adds a tool's output; the last missing one begins the turn's next response. Raises Conflict, NotFound."""
    state = build.state
    waiting = next((turn for turn in state.awaiting.values() if command.call_id in turn.missing), None)
    if waiting is None:
        answered = any(
            isinstance(item, FunctionCallOutput) and item.call_id == command.call_id for item in state.items.values()
        )
        if answered:
            raise Conflict("call_answered", f"The call {command.call_id!r} has its output.", param="call_id")
        raise NotFound("call_not_found", f"No call {command.call_id!r} waits for an output.", param="call_id")
    if waiting.server is not None and command.call_id in waiting.server.calls:
        raise server_call_conflict(command.call_id)
    item = FunctionCallOutput(
        id=item_ids_of(state.key, input.principal, command)[0],
        parent_id=waiting.last,
        call_id=command.call_id,
        output=command.output,
        is_error=command.is_error,
        created_at=build.now,
    )
    build.put_item(item, input.prepared)
    offset, response_id = state.top, None
    if not waiting.missing:
        response_id = response_id_of(state.key, input.principal, command.id)
        begin(
            build,
            NewResponse(
                id=response_id,
                parent=take_up(build, waiting.response_id, item.id, response_id),
                principal=input.principal,
                sampling=free_tool_choice(inherited(waiting.sampling, waiting.response_id)),
                after=waiting.response_id,
                model=waiting.model,
            ),
        )
    return cm.Ok(id=command.id, item_id=item.id, response_id=response_id, offset=offset)
