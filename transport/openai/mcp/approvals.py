"""Answers requests for approval, and finds the response that goes on behind them.

    mcp_approval_response ─► tool.approve ─► the tools' outputs ─► the next response, which is the answer

Somebody at another device may have answered first: then that holds, and what went on is read. An answer is given with
the response that asked, and with nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, Conflict, NotFound, Unavailable
from sessions.model.types import CallId, CommandId, FunctionCall, Item, Principal, ResponseId, SessionKey
from transport.gateway import Gateway
from transport.openai.log_cursor import LogCursor
from transport.openai.mcp.shown import call_id_of, resumed_calls
from transport.openai.request_models import InputItem

_RESPONSE = "mcp_approval_response"


class ApprovalAnswer(NamedTuple):
    """A client's decision about one approval request."""

    call_id: CallId
    approve: bool


class ResumedAnswer(NamedTuple):
    """A response that continues after approvals. Whoever gets it closes the cursor."""

    cursor: LogCursor
    response_id: ResponseId
    after: int
    before: Sequence[Item]


def decisions_of(given: str | Sequence[InputItem] | None, previous: str | None) -> list[ApprovalAnswer]:
    """Returns the approval decisions in an input; an empty list if it has none. Raises BadInput for a mixture."""
    if given is None or isinstance(given, str) or not any(item.type == _RESPONSE for item in given):
        return []
    decisions = []
    for index, item in enumerate(given):
        at = f"input[{index}]"
        if item.type != _RESPONSE or previous is None:
            what = f"An {_RESPONSE!r} is given with the 'previous_response_id' of its request, and with others alone."
            raise BadInput("invalid_request", what, param=at)
        if item.approval_request_id is None or item.approve is None:
            missing = f"{at}.{'approval_request_id' if item.approval_request_id is None else 'approve'}"
            raise BadInput("missing_required_parameter", f"Missing required parameter: '{missing}'.", param=missing)
        decisions.append(ApprovalAnswer(CallId(call_id_of(item.approval_request_id)), item.approve))
    return decisions


async def resume_behind(
    gateway: Gateway,
    principal: Principal,
    asked: tuple[SessionKey, ev.ResponseBody, int],
    decisions: Sequence[ApprovalAnswer],
    command_id: CommandId,
) -> ResumedAnswer:
    """Approves or refuses calls, and waits until the response that continues has begun. `asked`: the session, the
    response with the approval requests, and the offset behind which it is read. Raises NotFound, Unavailable."""
    key, body, after = asked
    calls = {item.call_id for item in body.output if isinstance(item, FunctionCall)}
    for index, decision in enumerate(decisions):
        if decision.call_id not in calls:
            raise NotFound(
                "call_not_found",
                "There is no such request for approval in this response.",
                param=f"input[{index}].approval_request_id",
            )
    at = body.id
    if isinstance(body.continued_by, str):
        at = body.continued_by
    follows = [body.id, at]
    cursor = LogCursor(gateway, principal, key, follows=follows)
    with cursor.closed_on_error():
        for index, decision in enumerate(decisions):
            command = cm.ToolApprove(
                id=CommandId(f"{command_id}.a{index}"),
                session=key.session,
                call_id=decision.call_id,
                approved=decision.approve,
            )
            try:
                await gateway.execute(principal, command)
            except (NotFound, Conflict) as error:  # it is answered already: by whom does not matter
                if error.code not in ("call_not_found", "call_answered"):
                    raise
        async for record in cursor.records(after):
            if isinstance(record.event, ev.ResponseCreated) and record.event.response_id == at:
                before = await calls_before(gateway, principal, key, record.event.response)
                return ResumedAnswer(cursor, at, record.offset - 1, before)
    raise Unavailable("journal_unavailable", "The log ended before the calls were made.")


async def calls_before(gateway: Gateway, principal: Principal, key: SessionKey, body: ev.ResponseBody) -> list[Item]:
    """Returns the calls needing approval that a response continues from, with their outputs; mostly an empty list."""
    if body.parent_id is None or not body.parent_id.startswith("fco_"):
        return []
    _, state = await gateway.logs.state(principal, key)
    return resumed_calls(state["items"], body.parent_id)
