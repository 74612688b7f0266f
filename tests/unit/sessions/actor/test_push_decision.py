"""Of which steps devices are told."""

from __future__ import annotations

from typing import Any

from sessions.actor.push_decision import concerns_user, push_notice
from sessions.machine.inputs_and_effects import Step
from sessions.machine.state import Awaiting, State
from sessions.machine.tool_turns import ServerCall, ServerCalls
from sessions.model import events as ev
from sessions.model.types import (
    CallId,
    ItemId,
    Principal,
    ResponseId,
    Sampling,
    SessionId,
    SessionKey,
    TenantId,
    UnixMs,
)

NOW = UnixMs(1_800_000_000_000)
KEY = SessionKey(TenantId("acme"), SessionId("s"))
RESPONSE = ResponseId("resp_1")


def a_state(**more: Any) -> State:
    return State(**{"key": KEY, "user": "ana", **more})


def an_end(offset: int = 7, kind: Any = ev.ResponseCompleted, **more: Any) -> ev.Record:
    body = ev.ResponseBody(id=RESPONSE, created_at=NOW, status="completed", model="m", parent_id=None, **more)
    return ev.Record(offset, NOW, kind(response_id=RESPONSE, sequence_number=offset, response=body))


def a_wait(*calls: str, missing: tuple[str, ...]) -> Awaiting:
    """For outputs, of which the server itself carries `calls` out."""
    ana = Principal(tenant=KEY.tenant, key_id="ana", user="ana")
    known = {CallId(name): ServerCall(call_id=CallId(name), name="f") for name in calls}
    return Awaiting(
        response_id=RESPONSE,
        sampling=Sampling(),
        missing=[CallId(name) for name in missing],
        last=ItemId("i"),
        since=NOW,
        server=ServerCalls(calls=known, principal=ana),
    )


def test_calls_that_the_server_carries_out_wait_for_nobody_until_somebody_is_asked() -> None:
    server, both = a_wait("call_1", missing=("call_1",)), a_wait("call_1", missing=("call_1", "call_2"))
    assert push_notice(Step(records=[an_end()]), a_state(awaiting={RESPONSE: server})) is None
    notice = push_notice(Step(records=[an_end()]), a_state(awaiting={RESPONSE: both}))
    assert notice is not None and notice.cause == "tool_call", "one of the calls is the client's"
    asked = ev.ToolApprovalRequested(response_id=RESPONSE, call_id=CallId("call_1"), name="f")
    step = Step(records=[ev.Record(9, NOW, asked)])
    assert concerns_user(step) and not concerns_user(Step(records=[an_end()]))
    notice = push_notice(step, a_state(awaiting={RESPONSE: server}))
    assert notice is not None and (notice.cause, notice.response_id, notice.offset) == ("approval", RESPONSE, 9)
    assert push_notice(step, a_state(user=None)) is None


def test_what_nobody_is_to_be_told_of() -> None:
    whole = Step(records=[an_end()])
    cancelled = an_end(kind=ev.ResponseIncomplete, incomplete_details={"reason": "cancelled"})
    assert push_notice(Step(records=[cancelled]), a_state()) is None
    assert push_notice(Step(), a_state()) is None
    for state in (a_state(user=None), a_state(listed=False), a_state(deleted=True)):
        assert push_notice(whole, state) is None
