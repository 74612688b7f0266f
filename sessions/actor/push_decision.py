"""Decides which steps a user's devices are notified of: an answer that has ended, tools that wait for somebody's
outputs, or a call that waits for approval.

Whoever cancelled an answer knows of its end, and a session that is not listed has no page to open, so neither gives a
notice. An answer whose calls the server itself carries out has not ended for its user: the turn goes on by itself, or
waits for approval.
"""

from __future__ import annotations

from sessions.machine.inputs_and_effects import Step
from sessions.machine.state import State
from sessions.model.events import ResponseCompleted, ResponseFailed, ResponseIncomplete, ToolApprovalRequested
from sessions.model.push import PushCause, PushNotice
from sessions.model.types import ResponseId

_ENDS = (ResponseCompleted, ResponseIncomplete, ResponseFailed)


def concerns_user(step: Step) -> bool:
    """Returns whether a step may have a notice, so that `push_notice` must look at it. It is cheap, because most steps
    are deltas."""
    return bool(step.usage) or any(isinstance(record.event, ToolApprovalRequested) for record in step.records)


def push_notice(step: Step, state: State) -> PushNotice | None:
    """Returns the notice that a step, which led to `state`, has for the session's user; the last one if there are
    several, None if there is none."""
    if state.user is None or not state.listed or state.deleted:
        return None
    for record in reversed(step.records):
        event = record.event
        if isinstance(event, ToolApprovalRequested):
            cause: PushCause | None = "approval"
        elif isinstance(event, _ENDS) and not _was_cancelled(event):
            cause = _cause_of_end(state, event.response_id)
        else:
            continue
        if cause is not None:
            return PushNotice(user=state.user, cause=cause, response_id=event.response_id, offset=record.offset)
    return None


def _cause_of_end(state: State, response_id: ResponseId) -> PushCause | None:
    waiting = state.awaiting.get(response_id)
    if waiting is None:
        return "answer"
    if waiting.server is not None and waiting.server.calls.keys() >= set(waiting.missing):
        return None
    return "tool_call"


def _was_cancelled(event: ResponseCompleted | ResponseIncomplete | ResponseFailed) -> bool:
    details = event.response.incomplete_details
    return details is not None and details.get("reason") == "cancelled"
