"""The `mcp` entries of a request's tools: which servers of ours they name, as they are read and shown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sessions.model.errors import BadInput
from sessions.model.types import Json, McpSource, Tool
from transport.openai.request_models import McpApprovalFilter, McpToolFilter, McpToolParam


def mcp_tool(given: McpToolParam, at: str) -> Tool:
    """Returns the tool that stands for an MCP server until the session's owner puts the server's tools in its place.
    Raises BadInput; `at` is the entry's place in the request."""
    for name in ("server_url", "connector_id", "authorization", "headers"):
        if getattr(given, name) is not None:
            what = f"{name!r} is not taken from clients: name an MCP server of this server's own by its 'server_label'."
            raise BadInput("unsupported_parameter", what, param=f"{at}.{name}")
    narrowed = given.allowed_tools
    allowed = narrowed.tool_names if isinstance(narrowed, McpToolFilter) else narrowed
    read_only = isinstance(narrowed, McpToolFilter) and bool(narrowed.read_only)
    approval: bool | tuple[str, ...] = given.require_approval == "always"
    unasked: tuple[str, ...] = ()
    if isinstance(given.require_approval, McpApprovalFilter):
        always, never = given.require_approval.always, given.require_approval.never
        for name, tools in (("always", always), ("never", never)):
            if tools is not None and tools.read_only is not None:
                what = "Name the tools by 'tool_names': which of them only read is not looked at here."
                raise BadInput("unsupported_parameter", what, param=f"{at}.require_approval.{name}.read_only")
        unasked = tuple((never and never.tool_names) or ())
        approval = tuple((always and always.tool_names) or ()) if always is not None else True
    source = McpSource(
        server_label=given.server_label,
        allowed=None if allowed is None else tuple(allowed),
        read_only=read_only,
        approval=approval,
        unasked=unasked,
    )
    return Tool(name=given.server_label, server=True, mcp=source)


def shown_tool(tool: Tool) -> dict[str, Json]:
    """Returns a tool as a response shows it."""
    if not isinstance(tool.mcp, McpSource) or tool.mcp.tool:
        return {**msgspec.to_builtins(tool), "parameters": tool.parameters or {}}
    source, shown = tool.mcp, {"type": "mcp", "server_label": tool.mcp.server_label}
    allowed: Any = None if source.allowed is None else list(source.allowed)
    if source.read_only:
        allowed = {"read_only": True, **({} if allowed is None else {"tool_names": allowed})}
    asks: Any = "always" if source.approval is True else None
    if source.unasked or not isinstance(source.approval, bool):
        asks = {"never": {"tool_names": list(source.unasked)}}
        if not isinstance(source.approval, bool):
            asks["always"] = {"tool_names": list(source.approval)}
    return {**shown, "allowed_tools": allowed, "require_approval": asks}


def without_listings(tools: Sequence[Any]) -> list[Any]:
    """Returns a request's tools without the tool lists of their servers, which the log stores with them."""
    return [
        {name: value for name, value in tool.items() if name != "listed"} if isinstance(tool, dict) else tool
        for tool in tools
    ]
