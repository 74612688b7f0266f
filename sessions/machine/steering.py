"""Steers an answer: a user's words are taken up while it is written, and what was released stays.

An answer that is text ends as `incomplete` (`steered`) where it is. The user's words become a message below its last
item, and a new response, with the same settings, goes on from there. For the branch that is an ordinary next turn, so
its KV is kept. An answer that calls tools is not interrupted, because a call needs its output: the words wait in the
session's queue (`steers`), and are added below the tools' outputs when the turn is continued (`responses.take_up`).

Invariant: one step does all of it, so no reader and no crash sees only a part.
"""

from __future__ import annotations

import msgspec

from sessions.machine import item_tree
from sessions.machine.inputs_and_effects import Command, Prepared
from sessions.machine.responses import (
    KEPT_SERVICE,
    NewResponse,
    begin,
    end_incomplete,
    free_tool_choice,
    inherited,
    item_ids_of,
    new_body,
    response_id_of,
    response_not_found,
)
from sessions.machine.state import Open
from sessions.machine.step_builder import StepBuilder
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import Conflict, Overloaded, SessileError
from sessions.model.generation import GENERATE
from sessions.model.types import FunctionCall, Message, ResponseId, Sampling

PENDING_MAX = 8


def steer_response(build: StepBuilder, input: Command, command: cm.ResponseSteer) -> cm.Ok:
    state = build.state
    open_, awaiting = state.open.get(command.response_id), state.awaiting.get(command.response_id)
    if open_ is not None:
        if any(isinstance(draft.item, FunctionCall) for draft in open_.drafts):
            return _wait(build, input, command, open_.sampling, open_.body.model)
        return _turn_to(build, input, command, open_)
    if awaiting is not None:
        return _wait(build, input, command, awaiting.sampling, awaiting.model)
    raise _refusal(build, command.response_id)


def _turn_to(build: StepBuilder, input: Command, command: cm.ResponseSteer, open_: Open) -> cm.Ok:
    """Ends a response where it is, adds the steering message, and begins the response that answers it."""
    body, successor = open_.body, response_id_of(build.state.key, input.principal, command.id)
    end_incomplete(build, open_, "steered", go_on=False, successor=successor)
    item = msgspec.structs.replace(_message(build, input, command), parent_id=open_.last_item)
    build.put_item(item, input.prepared)
    offset, service, request = build.state.top, body.service or {}, body.request
    if isinstance(request, dict):
        request = {name: value for name, value in request.items() if name != GENERATE}
        if "conversation" not in request and request.get("store") is not False:
            request["previous_response_id"] = open_.id
    begin(
        build,
        NewResponse(
            id=successor,
            parent=item.id,
            principal=input.principal,
            sampling=inherited(open_.sampling, open_.id),
            after=open_.id,
            model=body.model,
            service={name: service[name] for name in service if name in KEPT_SERVICE} or None,
            metadata=dict(body.metadata),
            request=request,
            behind=open_.id,
        ),
    )
    return cm.Ok(id=command.id, item_id=item.id, response_id=successor, offset=offset)


def _wait(build: StepBuilder, input: Command, command: cm.ResponseSteer, sampling: Sampling, model: str) -> cm.Ok:
    """Queues the steering message until the outputs of the response's tools are there. If no outputs come, or the
    response calls no tool after all, the message is answered when the response has ended. Raises Overloaded if too many
    wait."""
    after = command.response_id
    while (waiting := item_tree.steering_behind(build.state, after)) is not None:
        after = waiting.body.id
    if sum(waiting.steers for waiting in build.state.queue) >= PENDING_MAX:
        raise Overloaded("queue_full", f"{PENDING_MAX} messages wait in this session already.", retry_after_ms=1_000)
    item = msgspec.structs.replace(_message(build, input, command), status="queued")
    new = NewResponse(
        id=response_id_of(build.state.key, input.principal, command.id),
        parent=None,
        principal=input.principal,
        sampling=free_tool_choice(inherited(sampling, command.response_id)),
        model=model,
    )
    prepared = input.prepared or Prepared(b"", "")
    build.put(
        ev.ResponseQueued(
            response_id=new.id, sequence_number=0, response=new_body(build, new, "queued"), item=item, steers=True
        ),
        ev.Private(
            after=after,
            principal=new.principal,
            sampling=new.sampling,
            tokens=prepared.tokens,
            fingerprint=prepared.fingerprint,
        ),
    )
    return cm.Ok(id=command.id, item_id=item.id, response_id=new.id, offset=build.state.top)


def _message(build: StepBuilder, input: Command, command: cm.ResponseSteer) -> Message:
    return Message(
        id=item_ids_of(build.state.key, input.principal, command)[0],
        parent_id=None,
        role="user",
        content=cm.content_parts(command.content),
        status="completed",
        created_at=build.now,
    )


def _refusal(build: StepBuilder, response_id: ResponseId) -> SessileError:
    state = build.state
    if any(waiting.body.id == response_id for waiting in state.queue):
        return Conflict("response_not_active", "This response waits for another one: send a message.")
    if response_id in state.answers:
        return Conflict(
            "response_already_completed",
            "This response has ended: send what you have to say as a message.",
            param="response_id",
        )
    return response_not_found(response_id)
