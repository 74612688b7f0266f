"""Adds the server's own tools to a command that names them: with their present descriptions and parameters.

What the tools file, or an MCP server, says of the tools reaches the prompt this way, and afterwards passes the input
filters like what a client says of its own tools. If a command names an MCP server, that stands for all tools of the
server.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec
from msgspec import UNSET

from sessions.model import commands as cm
from sessions.model.errors import BadInput, NotFound
from sessions.model.types import McpSource, Principal, SearchScope, TenantId, Tool
from sessions.ports import ServerTools
from sessions.retrieval.filters import parse_filter
from sessions.server_tools import FILE_SEARCH, ServerTool

TOOLS_MAX: Final = 256  # of a session, with those that MCP servers have


async def with_server_tools(
    command: cm.ActorCommand, tools: ServerTools | None, principal: Principal, *, takes_tools: bool
) -> cm.ActorCommand:
    """Returns the command with the full definitions of the server tools that it names, and of those that every session
    of the tenant has. Raises NotFound for an unknown tool, or a store that its search could not use; BadInput for too
    many tools or two of one name, Unavailable for an MCP server that is away."""
    if not isinstance(command, cm.SessionCreate | cm.SessionUpdate | cm.TurnCreate):
        return command
    offered = tools.offered(principal.tenant) if tools is not None and takes_tools else ()
    replace = msgspec.structs.replace
    at_files = "container.file_ids" if isinstance(command, cm.TurnCreate) else "file_ids"  # of `/v1/responses`
    if isinstance(command, cm.TurnCreate) and command.create is not None:
        made = replace(command.create, tools=await _named(command.create.tools, tools, principal, offered, at_files))
        command = replace(command, create=made)
    if command.tools is UNSET:
        return command
    if not isinstance(command, cm.SessionCreate) and not offered and not command.tools:
        return command
    return replace(command, tools=await _named(command.tools or (), tools, principal, offered, at_files))


async def _named(
    given: tuple[Tool, ...],
    tools: ServerTools | None,
    principal: Principal,
    offered: Collection[str],
    at_files: str,
) -> tuple[Tool, ...]:
    tenant = principal.tenant
    if any(tool.server is not True and tool.mcp is not UNSET for tool in given):
        raise BadInput("invalid_request", "Tools of MCP servers are the server's: say `server` too.", param="tools")
    for tool in given:
        _check_search(tool)
        if isinstance(tool.file_ids, tuple) and tool.server is not True:
            raise BadInput("invalid_request", "Only a code tool of the server has `file_ids`.", param="tools")
    if not offered and not any(tool.server is True for tool in given):
        return given
    named: dict[str, Tool] = {}
    ours = {tool.name for tool in given if tool.server is True} | set(offered)
    for index, tool in enumerate(given):
        if tool.server is not True and tool.name in ours:
            raise BadInput("invalid_request", f"The tool {tool.name!r} is the server's own.", param="tools")
        if isinstance(tool.mcp, McpSource) and not tool.mcp.tool:
            several = await _of_server(tool.mcp, tools, tenant)
        else:
            several = [_find(tool, tools, tenant) if tool.server is True else tool]
        for each in several:
            if each.name in named:
                raise BadInput("invalid_request", f"Two tools are named {each.name!r}.", param="tools")
            named[each.name] = each
        if isinstance(tool.search, SearchScope):
            await _check_scope(index, tool, tool.search, tools, principal)
        if isinstance(tool.file_ids, tuple):
            await _check_files(f"tools[{index}].{at_files}", tool, tool.file_ids, tools, principal)
    for name in offered:
        if name not in named:
            named[name] = _find(Tool(name=name), tools, tenant)
    if len(named) > TOOLS_MAX:
        raise BadInput(
            "invalid_request",
            f"These are {len(named)} tools; at most {TOOLS_MAX} may be named. Say which.",
            param="tools",
        )
    return tuple(named.values())


def _check_search(tool: Tool) -> None:
    """Raises BadInput for a scope of searches at a tool that searches nothing, or with filters that are wrong."""
    if not isinstance(tool.search, SearchScope):
        return
    if tool.server is not True or tool.name != FILE_SEARCH:
        raise BadInput("invalid_request", f"Only the server's {FILE_SEARCH!r} has a `search`.", param="tools")
    if tool.search.filters is not None:
        parse_filter(tool.search.filters, param="tools")


async def _check_scope(
    index: int, tool: Tool, scope: SearchScope, tools: ServerTools | None, principal: Principal
) -> None:
    """Raises NotFound for a store of the scope that the principal may not name."""
    server_tool = tools.find(principal.tenant, tool.name) if tools is not None else None
    if server_tool is not None and server_tool.check_search is not None:
        try:
            await server_tool.check_search(principal, scope)
        except NotFound as error:
            error.param = f"tools[{index}].vector_store_ids"
            raise


async def _check_files(
    at: str, tool: Tool, file_ids: tuple[str, ...], tools: ServerTools | None, principal: Principal
) -> None:
    """Raises NotFound for a file that the principal may not see."""
    server_tool = tools.find(principal.tenant, tool.name) if tools is not None else None
    if server_tool is not None and server_tool.check_file is not None:
        for number, file_id in enumerate(file_ids):
            try:
                await server_tool.check_file(principal, file_id)
            except NotFound as error:
                error.param = f"{at}[{number}]"
                raise


def _find(tool: Tool, tools: ServerTools | None, tenant: TenantId) -> Tool:
    name = tool.name
    server_tool = tools.find(tenant, name) if tools is not None else None
    if server_tool is None:
        raise NotFound("tool_not_found", f"The server has no tool {name!r} for you.", param="tools")
    if server_tool.unavailable:
        why = f"This server cannot carry {name!r} out: {server_tool.unavailable}."
        raise BadInput("tool_unavailable", why, param="tools")
    if isinstance(tool.search, SearchScope) and server_tool.check_search is None:
        raise BadInput("invalid_request", f"This server's {name!r} takes no `search`.", param="tools")
    if isinstance(tool.file_ids, tuple) and server_tool.check_file is None:
        raise BadInput("invalid_request", f"This server's {name!r} takes no `file_ids`.", param="tools")
    return msgspec.structs.replace(server_tool.tool, search=tool.search, file_ids=tool.file_ids)


async def _of_server(named: McpSource, tools: ServerTools | None, tenant: TenantId) -> list[Tool]:
    if tools is None:
        raise NotFound("tool_not_found", f"The server has no MCP server {named.server_label!r} for you.", param="tools")
    found = [each for each in await tools.of_server(tenant, named) if not named.read_only or each.read_only]
    if named.allowed is not None:
        there = {_name_there(each): each for each in found}
        missing = [name for name in named.allowed if name not in there]
        if missing:
            what = f"The MCP server {named.server_label!r} has no tool {missing[0]!r} for you."
            raise NotFound("tool_not_found", what, param="tools")
        found = [there[name] for name in dict.fromkeys(named.allowed)]
    return [_as_named(each, named) for each in found]


def _as_named(found: ServerTool, named: McpSource) -> Tool:
    name, ask = _name_there(found), named.approval
    approval = found.approval or (name not in named.unasked if ask is True else ask is not False and name in ask)
    source = McpSource(server_label=named.server_label, tool=name, approval=approval)
    return msgspec.structs.replace(found.tool, mcp=source)


def with_listings(command: cm.TurnCreate, present: tuple[Tool, ...]) -> cm.TurnCreate:
    """Returns the command with the present tool lists of its MCP servers in its `request`, which the response shows.
    Returns it unchanged if its tools equal those that the session has already (`present`)."""
    request = command.request
    tools = (
        command.tools if command.tools is not UNSET else command.create.tools if command.create is not None else None
    )
    if not isinstance(request, dict) or not tools or tools == present:
        return command
    shown = request.get("tools")
    if not isinstance(shown, list) or not any(isinstance(each, dict) and each.get("type") == "mcp" for each in shown):
        return command
    listed = [_with_listing(each, tools) if isinstance(each, dict) else each for each in shown]
    return msgspec.structs.replace(command, request={**request, "tools": listed})


def _with_listing(shown: dict[str, Any], tools: Iterable[Tool]) -> dict[str, Any]:
    if shown.get("type") != "mcp":
        return shown
    listed = [
        {
            "name": tool.mcp.tool,
            "description": tool.description,
            "input_schema": tool.parameters or {},
            "annotations": None,
        }
        for tool in tools
        if isinstance(tool.mcp, McpSource) and tool.mcp.server_label == shown["server_label"]
    ]
    return {**shown, "listed": listed}


def _name_there(found: ServerTool) -> str:
    source = found.tool.mcp
    return source.tool if isinstance(source, McpSource) else found.tool.name
