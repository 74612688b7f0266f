"""Applies a whole turn in one command: the session, its history and the answer.

For protocols whose clients know no sessions. Everything is checked before anything is written, so a turn that is
refused writes nothing. Does not know why its caller chose this session and this parent.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from sessions.machine import item_tree
from sessions.machine.inputs_and_effects import Command, Prepared
from sessions.machine.item_tree import busy_conflict
from sessions.machine.responses import (
    NewResponse,
    begin,
    item_ids_of,
    next_in_line,
    response_id_of,
    response_not_found,
    take_up,
)
from sessions.machine.server_tools import newest_of, server_call_conflict
from sessions.machine.session_commands import check_tools, make_session
from sessions.machine.state import Awaiting, State, stands_below
from sessions.machine.step_builder import StepBuilder
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput
from sessions.model.generation import ITEMS_LEFT_OUT, RETRIEVAL_SKIPPED
from sessions.model.types import (
    CallId,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemId,
    Json,
    Message,
    OutputText,
    ResponseId,
    UnixMs,
)


def continues_turn(state: State, command: cm.ActorCommand) -> bool:
    """Returns whether a command brings all outputs that an open turn waits for. Such a turn was admitted when it
    began."""
    if not isinstance(command, cm.TurnCreate):
        return isinstance(command, cm.ToolOutput)
    answers = _answers(command)
    return any(answers.issuperset(turn.missing) for turn in state.awaiting.values())


def create_turn(build: StepBuilder, input: Command, command: cm.TurnCreate) -> cm.Ok:
    state, principal = build.state, input.principal
    after = command.after_response
    parent = item_tree.parent_of(state, command.parent_id) if after is None else _last_of(state, after)
    turn = _continued(state, parent, command, implied=command.parent_id is UNSET and after is None)
    if command.tool_choice != "none":
        check_tools(build, command.tools)
        check_tools(build, command.create.tools if command.create is not None and state.info is None else ())
    if state.info is None:
        assert command.create is not None
        settings = msgspec.structs.replace(
            command.create, context_policy=command.context_policy, compact_threshold=command.compact_threshold
        )
        make_session(build, input, settings)
    else:
        _update_settings(build, state.info, command)
    names = item_ids_of(state.key, principal, command)
    response_id = response_id_of(state.key, principal, command.id) if command.respond else None
    outputs_end = max((at for at, item in enumerate(command.items) if isinstance(item, cm.NewOutput)), default=-1)
    for index, (name, new) in enumerate(zip(names, command.items, strict=True)):
        prepared = input.prepared_items[index] if index < len(input.prepared_items) else None
        item = new_item(name, new, parent, build.now, prepared)
        build.put_item(item, prepared)
        parent = item.id
        if turn is not None and response_id is not None and index == outputs_end:
            parent = take_up(build, turn.response_id, parent, response_id)
    offset = state.top
    if response_id is not None:
        begin(
            build,
            NewResponse(
                id=response_id,
                parent=parent,
                principal=principal,
                sampling=cm.sampling_of(command),
                after=turn.response_id if turn is not None else None,
                metadata=command.metadata,
                request=command.request,
                model=turn.model if turn is not None else input.model,
                service=input.service if turn is None else _of_its_context(input.service),
            ),
        )
    elif turn is not None:
        next_in_line(build, turn.response_id, parent)
    return cm.Ok(
        id=command.id,
        session=state.key.session,
        item_id=parent if command.items else None,
        response_id=response_id,
        offset=offset,
    )


def _continued(state: State, parent: ItemId | None, command: cm.TurnCreate, *, implied: bool) -> Awaiting | None:
    """Returns the waiting turn whose tool outputs the command brings; None if it brings none. Raises Conflict if the
    branch is busy or an output is for a server tool's call, BadInput if an output is missing."""
    answers = _answers(command)
    turn = next(
        (
            turn
            for turn in state.awaiting.values()
            if answers.intersection(turn.missing) and stands_below(state, parent, turn.last)
        ),
        None,
    )
    answering = turn.response_id if turn is not None else None
    blocked = item_tree.blocker(state, parent, implied=implied, answering=answering)
    if blocked is not None:
        raise busy_conflict(blocked[1])
    ours = set(turn.server.calls) if turn is not None and turn.server is not None else set()
    if turn is not None and (forged := answers & ours & set(turn.missing)):
        raise server_call_conflict(min(forged))
    if turn is not None and (missing := set(turn.missing) - answers):
        if ours >= missing:
            raise busy_conflict("tools_pending")  # the server's own, which are on their way
        raise BadInput("invalid_request", f"No tool output found for function call {min(missing)}.", param="input")
    return turn


def _update_settings(build: StepBuilder, info: ev.SessionInfo, command: cm.TurnCreate) -> None:
    """Sets the session's instructions, tools and context settings to what the turn says."""
    changed = info
    if command.context_policy is not UNSET:
        changed = msgspec.structs.replace(changed, context_policy=command.context_policy)
    if command.compact_threshold is not UNSET:
        changed = msgspec.structs.replace(changed, compact_threshold=command.compact_threshold)
    if command.instructions is not UNSET:
        changed = msgspec.structs.replace(changed, instructions=command.instructions)
    if command.tools is not UNSET:
        changed = msgspec.structs.replace(changed, tools=command.tools)
    if changed != info:
        build.put(ev.SessionUpdated(info=changed))


def _last_of(state: State, response_id: ResponseId) -> ItemId | None:
    """Returns the last item of a response, below which the turn goes on. If the response wrote none, returns the item
    that it was to answer. Raises Conflict while the response runs, NotFound, and BadInput if it never began, because
    its message is on no branch."""
    response_id = newest_of(state, response_id)
    if response_id in state.open or any(waiting.body.id == response_id for waiting in state.queue):
        raise busy_conflict("response_in_progress")
    answer = state.answers.get(response_id)
    if answer is None:
        raise response_not_found(response_id, param="previous_response_id")
    if answer.items:
        return answer.items[-1]
    if answer.parent is UNSET:
        what = "This response never began, or its output was deleted: go on from the response before it, and send its"
        raise BadInput("invalid_request", f"{what} message again.", param="previous_response_id")
    return answer.parent


def new_item(
    name: ItemId, new: cm.NewItem, parent: ItemId | None, now: UnixMs, prepared: Prepared | None = None
) -> Item:
    """Returns an item of the turn as the log has it, with the id `name`, and the passages that were found for it."""
    match new:
        case cm.NewMessage():
            parts = (*(() if prepared is None else prepared.passages), *cm.content_parts(new.content))
            return Message(
                id=name,
                parent_id=parent,
                role=new.role,
                content=tuple(OutputText(part.text) for part in parts) if new.role == "assistant" else parts,
                status="completed",
                created_at=now,
            )
        case cm.NewCall():
            return FunctionCall(
                id=name,
                parent_id=parent,
                call_id=new.call_id,
                name=new.name,
                arguments=new.arguments,
                status="completed",
                created_at=now,
            )
        case cm.NewOutput():
            return FunctionCallOutput(
                id=name,
                parent_id=parent,
                call_id=new.call_id,
                output=new.output,
                is_error=new.is_error,
                created_at=now,
            )


def _of_its_context(service: dict[str, Json] | None) -> dict[str, Json] | None:
    """Returns the entries of `service` that are about the prompt's context, without those about admission: the turn is
    continued, and was admitted when it began."""
    context = {name: each for name, each in (service or {}).items() if name in (ITEMS_LEFT_OUT, RETRIEVAL_SKIPPED)}
    return context or None


def _answers(command: cm.TurnCreate) -> set[CallId]:
    return {item.call_id for item in command.items if isinstance(item, cm.NewOutput)}
