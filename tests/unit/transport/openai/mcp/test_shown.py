"""Calls of MCP tools in OpenAI's shapes, out of what the log has."""

from __future__ import annotations

from typing import Any

from sessions.model import events as ev
from sessions.model.types import CallId, FunctionCall, FunctionCallOutput, ItemId, McpSource, ResponseId, UnixMs
from transport.openai.mcp.shown import McpEvents

NOW = UnixMs(0)
WHERE: dict[str, Any] = {"response_id": ResponseId("resp_1")}
REQUEST: dict[str, Any] = {
    "tools": [{"type": "mcp", "server_label": "town", "listed": [{"name": "look", "input_schema": {}}]}]
}


def call(number: int = 0, *, approval: bool = False, parent: str | None = None) -> FunctionCall:
    return FunctionCall(
        id=ItemId(f"fc_{number}"),
        parent_id=None if parent is None else ItemId(parent),
        call_id=CallId(f"call_{number}"),
        name="town__look",
        arguments="{}",
        status="completed",
        created_at=NOW,
        server=True,
        mcp=McpSource(server_label="town", tool="look", approval=approval),
    )


def output(number: int = 0, *, failed: bool = False, parent: str = "fc_0") -> FunctionCallOutput:
    return FunctionCallOutput(
        id=ItemId(f"fco_{number}"),
        parent_id=ItemId(parent),
        call_id=CallId(f"call_{number}"),
        output="seen",
        is_error=failed,
        created_at=NOW,
    )


def body(**more: Any) -> ev.ResponseBody:
    return ev.ResponseBody(
        id=ResponseId("resp_1"), created_at=NOW, status="in_progress", model="m", parent_id=None, **more
    )


def test_events_are_numbered_and_placed_anew() -> None:
    events, where = McpEvents(), WHERE
    written = [
        ev.ResponseCreated(sequence_number=0, response=body(request=REQUEST), **where),
        ev.ResponseInProgress(sequence_number=1, **where),
        ev.OutputItemAdded(sequence_number=2, output_index=0, item=call(), **where),
        ev.ArgumentsDelta(sequence_number=3, item_id=ItemId("fc_0"), output_index=0, delta="{}", **where),
        ev.OutputItemDone(sequence_number=4, output_index=0, item=call(), **where),
        ev.OutputItemAdded(sequence_number=5, output_index=1, item=call(1, approval=True), **where),
        ev.ArgumentsDelta(sequence_number=6, item_id=ItemId("fc_1"), output_index=1, delta="{}", **where),
        ev.OutputItemDone(sequence_number=7, output_index=1, item=call(1, approval=True), **where),
        ev.OutputItemAdded(sequence_number=8, output_index=2, item=output(), **where),
        ev.OutputItemDone(sequence_number=9, output_index=2, item=output(), **where),
    ]
    shown = [each for event in written for each in events.take(event, {"type": "plain"})]
    assert [each["sequence_number"] for each in shown] == list(range(len(shown)))
    assert [each["type"].removeprefix("response.") for each in shown] == [
        *("plain", "plain", "output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.completed"),
        *("output_item.done", "output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta"),
        *("output_item.added", "output_item.done", "mcp_call.completed", "output_item.done"),
    ]
    assert [each["output_index"] for each in shown if "item" in each] == [0, 0, 1, 2, 2, 1]
