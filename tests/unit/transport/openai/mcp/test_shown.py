"""Calls of MCP tools in OpenAI's shapes, out of what the log has."""

from __future__ import annotations

from sessions.model.types import (
    CallId,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemId,
    McpSource,
    UnixMs,
)
from transport.openai.mcp.shown import (
    resumed_calls,
)

NOW = UnixMs(0)


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


def test_what_an_answer_goes_on_from_belongs_to_it_where_somebody_was_asked() -> None:
    items: list[Item] = [call(approval=True), call(1, parent="fc_0"), output(parent="fc_1"), output(1, parent="fco_0")]
    assert resumed_calls(items, "fco_1") == [items[0], items[2], items[1], items[3]]
    plain: list[Item] = [call(), output()]
    assert resumed_calls(plain, "fco_0") == [] and resumed_calls(items, None) == []
