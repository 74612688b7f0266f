"""The calls of a response that the server carries out."""

from __future__ import annotations

from msgspec import UNSET

from sessions.machine.tool_turns import server_calls
from sessions.model.events import ResponseBody
from sessions.model.types import LOCAL_PRINCIPAL, CallId, FunctionCall, ItemId, ResponseId, UnixMs


def call(name: str, *, server: bool) -> FunctionCall:
    return FunctionCall(
        id=ItemId(f"fc_{name}"),
        parent_id=None,
        call_id=CallId(f"call_{name}"),
        name=name,
        arguments="{}",
        status="completed",
        created_at=UnixMs(0),
        server=server or UNSET,
    )


def body(*output: FunctionCall) -> ResponseBody:
    return ResponseBody(
        id=ResponseId("r"), created_at=UnixMs(0), status="completed", model="m", parent_id=None, output=output
    )


def test_those_of_clients_are_not_among_them() -> None:
    found = server_calls(body(call("a", server=True), call("b", server=False)), LOCAL_PRINCIPAL, 2)
    assert found is not None and list(found.calls) == ["call_a"] and found.round == 2
    assert server_calls(body(call("b", server=False)), LOCAL_PRINCIPAL, 0) is None
