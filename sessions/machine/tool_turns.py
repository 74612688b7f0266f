"""The part of a session's state about calls that the server itself carries out.

Pure; a part of `sessions.machine.state`, which folds it from the log.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from sessions.model.events import ResponseBody, ToolApprovalDecided, ToolApprovalRequested, ToolCallStarted
from sessions.model.generation import TOOL_CALLS_MADE
from sessions.model.types import CallId, FunctionCall, Json, McpSource, Principal

ToolEvent = ToolCallStarted | ToolApprovalRequested | ToolApprovalDecided


class ServerCall(Struct, kw_only=True):
    """One call of a server tool. If it has an `execution_id` it was about to be sent; only an output proves that it
    was."""

    call_id: CallId
    name: str
    must_ask: bool = False  # its client wants to be asked, whatever the tools file says
    execution_id: str = ""
    is_excess: bool = False  # beyond the request's `max_tool_calls`: it is not made
    approval: Literal["", "asked", "approved"] = ""


def apply_tool_event(server: ServerCalls | None, event: ToolEvent) -> None:
    """Updates a call's state by an event: it was sent, waits for approval, or was approved or denied."""
    call = server.calls.get(event.call_id) if server is not None else None
    if call is None:
        return
    match event:
        case ToolCallStarted():
            call.execution_id = event.execution_id
        case ToolApprovalRequested():
            call.approval = "asked"
        case ToolApprovalDecided():
            call.approval = "approved" if event.approved else "asked"


class ServerCalls(Struct, kw_only=True):
    """The server tool calls of one response, for whom they are made, and what the rest of its turn inherits."""

    calls: dict[CallId, ServerCall]
    principal: Principal
    round: int = 0
    request: dict[str, Json] | UnsetType = UNSET
    metadata: dict[str, Json] = {}


def _without_listings(request: dict[str, Json]) -> dict[str, Json]:
    """Returns a request without the listings of MCP servers, which the rest of the turn does not repeat."""
    tools = request.get("tools")
    if not isinstance(tools, list):
        return dict(request)
    kept = [
        {name: value for name, value in each.items() if name != "listed"} if isinstance(each, dict) else each
        for each in tools
    ]
    return {**request, "tools": kept}


def _calls_of(request: dict[str, Json] | UnsetType) -> tuple[int, int | None]:
    """Returns how many server tool calls an answer made before this response, and the answer's limit of them, None if
    it has none."""
    settings = {} if request is UNSET else request
    before, most = settings.get(TOOL_CALLS_MADE, 0), settings.get("max_tool_calls")
    return before if isinstance(before, int) else 0, most if isinstance(most, int) else None


def _must_ask(item: FunctionCall) -> bool:
    return isinstance(item.mcp, McpSource) and item.mcp.approval is True


def server_calls(body: ResponseBody, principal: Principal, round: int) -> ServerCalls | None:
    """Returns the server tool calls of a response that has ended; None if it has none."""
    made = [item for item in body.output if isinstance(item, FunctionCall) and item.server is True]
    if not made:
        return None
    request = _without_listings(body.request) if body.request is not UNSET else UNSET
    before, most = _calls_of(request)
    calls = {
        item.call_id: ServerCall(
            call_id=item.call_id,
            name=item.name,
            must_ask=_must_ask(item),
            is_excess=most is not None and number >= most,
        )
        for number, item in enumerate(made, before)
    }
    if most is not None and request is not UNSET:
        request[TOOL_CALLS_MADE] = before + len(made)
    return ServerCalls(calls=calls, principal=principal, round=round, request=request, metadata=dict(body.metadata))
