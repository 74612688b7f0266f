"""`/v1/tools/{name}` and `/v1/tool_servers/{server}`: HTTP tools and MCP servers that a tenant's administrators add.

Each has an ETag; a change with `If-Match` is refused if somebody else was faster. The values of headers are never
returned. What a table may say is decided by the reader of the tools file (`sessions.added_tools.AddedToolCheck`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from sessions.added_tools import (
    NAME_PARAMS,
    AddedKind,
    AddedTool,
    AddedToolCheck,
    AddedTools,
    encode_tools,
    tools_conflict,
)
from sessions.backoff import Backoff
from sessions.model.audit import Action, Audited
from sessions.model.authorization import demand_administrator
from sessions.model.errors import BadInput, Conflict, Forbidden, Internal, NotFound
from sessions.model.json_schema import SchemaFault
from sessions.model.types import Principal, TenantId
from sessions.tool_records import ToolRecord, ToolRecordKind
from transport.http_api.context import gateway_of, principal_of, tool_changes_of
from transport.http_api.strict_json import StrictRoute
from transport.openai.response_models import ERRORS, ResponseModel

Name = Annotated[str, Path(min_length=1, max_length=64)]
ATTEMPTS: Final = 16  # at a change, while others change the tenant's tools too
FIRST_PAUSE_S: Final = 0.01
PAUSE_MAX_S: Final = 0.5
RECORDS: Final[tuple[ToolRecordKind, ...]] = ("pin", "listing")  # about an MCP server
BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "description": "The settings of a tool, or an MCP server, in the tools file (docs/tools.md), and `offer`.",
        "content": {"application/json": {"schema": {"required": ["url"]}}},
    }
}
OFFER: Final = {"type": "boolean", "default": False, "description": "Every session of the tenant has it."}


class AddedToolObject(ResponseModel):
    """An HTTP tool or an MCP server that administrators have added. `settings` are those of the tools file, without the
    values of headers. `left_out` is why it is not in force; null if it is."""

    object: Literal["tool", "tool_server.settings"]
    name: str
    settings: dict[str, Any]
    changed_at: int
    changed_by: str
    left_out: str | None


class DeletedToolObject(ResponseModel):
    object: Literal["tool.deleted", "tool_server.deleted"]
    name: str
    deleted: bool = True


def describe(document: dict[str, Any], check: AddedToolCheck) -> None:
    """Writes the fields of the bodies into the server's OpenAPI document."""
    kinds: tuple[tuple[str, AddedKind], ...] = (("/v1/tools/{name}", "tool"), ("/v1/tool_servers/{server}", "server"))
    for path, kind in kinds:
        schema = check.table_schema(kind)
        schema["properties"] = {**schema["properties"], "offer": OFFER}
        document["paths"][path]["put"]["requestBody"]["content"]["application/json"]["schema"] = schema


def _refuse_tenant(tenant: Annotated[str | None, Query(include_in_schema=False)] = None) -> None:
    """Raises BadInput for a request that names a tenant: these routes are about the caller's own."""
    if tenant is not None:
        raise BadInput("invalid_request", "`tenant`: tools are added to the key's own tenant.", param="tenant")


routes = APIRouter(tags=["tools"], route_class=StrictRoute, dependencies=[Depends(_refuse_tenant)])


@routes.put("/v1/tools/{name}", responses=ERRORS, openapi_extra=BODY)
async def put_tool(request: Request, name: Name, body: dict[str, Any], response: Response) -> AddedToolObject:
    """Adds an HTTP tool to the tenant's, or replaces it. Sessions can name it within two seconds."""
    return await _put(request, response, "tool", name, body)


@routes.get("/v1/tools/{name}", responses=ERRORS)
async def get_tool(request: Request, name: Name, response: Response) -> AddedToolObject:
    """Returns an HTTP tool that was added."""
    return await _get(request, response, "tool", name)


@routes.delete("/v1/tools/{name}", responses=ERRORS)
async def delete_tool(request: Request, name: Name) -> DeletedToolObject:
    """Deletes an HTTP tool that was added. Calls that run go on; later ones are `tool_not_found`."""
    await _delete(request, "tool", name)
    return DeletedToolObject(object="tool.deleted", name=name)


@routes.put("/v1/tool_servers/{server}", responses=ERRORS, openapi_extra=BODY)
async def put_server(request: Request, server: Name, body: dict[str, Any], response: Response) -> AddedToolObject:
    """Adds an MCP server to the tenant's, or replaces it. Its tools are there as soon as it has listed them."""
    return await _put(request, response, "server", server, body)


@routes.get("/v1/tool_servers/{server}", responses=ERRORS)
async def get_server(request: Request, server: Name, response: Response) -> AddedToolObject:
    """Returns the settings of an MCP server that was added."""
    return await _get(request, response, "server", server)


@routes.delete("/v1/tool_servers/{server}", responses=ERRORS)
async def delete_server(request: Request, server: Name) -> DeletedToolObject:
    """Deletes an MCP server that was added, with the agreements about its tools."""
    principal, gateway, missing = principal_of(request), gateway_of(request), None
    try:
        await _delete(request, "server", server)
    except NotFound as error:  # agreements may be left of a deletion that was interrupted
        missing = error
    if gateway.added_tools is None or not gateway.added_tools.has_server(principal.tenant, server):
        audit = Audited(action="tool.deleted", at=gateway.now_ms(), by=principal, detail=_detail("server", server))
        for kind in RECORDS:
            record = ToolRecord(tenant=principal.tenant, kind=kind, name=server, body="", at=audit.at)
            if await gateway.store.tool_records.remove(record, audit if missing else None):
                missing = None
    if missing is not None:
        raise missing
    return DeletedToolObject(object="tool_server.deleted", name=server)


async def tool_object(request: Request, tenant: TenantId, tool: AddedTool) -> AddedToolObject:
    check = gateway_of(request).added_tools
    left_out: str | None = "this server has no tools file"
    if check is not None:
        left_out = await asyncio.to_thread(check.left_out, tenant, tool)
    return AddedToolObject(
        object="tool" if tool.kind == "tool" else "tool_server.settings",
        name=tool.name,
        settings=tool.shown,
        changed_at=tool.at,
        changed_by=tool.by,
        left_out=left_out,
    )


async def _get(request: Request, response: Response, kind: AddedKind, name: str) -> AddedToolObject:
    tenant = demand_administrator(principal_of(request))
    tool = _present(await gateway_of(request).store.added_tools.tools_of(tenant), kind, name)
    response.headers["etag"] = _etag(tool)
    return await tool_object(request, tenant, tool)


async def _put(
    request: Request, response: Response, kind: AddedKind, name: str, body: dict[str, Any]
) -> AddedToolObject:
    principal, gateway = principal_of(request), gateway_of(request)
    tenant, check = demand_administrator(principal), gateway.added_tools
    if check is None:
        raise Forbidden("tools_disabled", "This server has no tools file: see docs/tools.md.")
    offer = body.pop("offer", False)
    if not isinstance(offer, bool):
        raise BadInput("invalid_request", "`offer` is true or false.", param="offer")
    parameters = body.get("parameters")
    if isinstance(parameters, dict) and isinstance(fault := await gateway.schemas.judge(parameters), SchemaFault):
        raise BadInput("invalid_request", f"`parameters`: {fault}", param="parameters")
    tool = AddedTool(
        kind=kind,
        name=name,
        table=body,
        offer=offer,
        revision=gateway.new_id(),
        at=gateway.now_ms(),
        by=principal.key_id,
    )
    await asyncio.to_thread(check.check, tenant, tool)
    encode_tools(AddedTools(tenant=tenant, tools=(tool,)))  # one that is too large waits for no turn
    before = await _change(request, principal, tool, lambda tools: tools.with_tool(tool), "tool.stored")
    response.status_code = 201 if before is None else 200
    response.headers["etag"] = _etag(tool)
    return await tool_object(request, tenant, tool)


async def _delete(request: Request, kind: AddedKind, name: str) -> None:
    principal, now = principal_of(request), gateway_of(request).now_ms()
    demand_administrator(principal)
    tool = AddedTool(kind=kind, name=name, table={}, revision="", at=now, by=principal.key_id)

    def without(tools: AddedTools) -> AddedTools:
        if tools.readable:
            _present(tools, kind, name)
        return tools.without(kind, name)

    await _change(request, principal, tool, without, "tool.deleted")


async def _change(
    request: Request, by: Principal, tool: AddedTool, change: Callable[[AddedTools], AddedTools], action: Action
) -> AddedTool | None:
    """Stores a change of the tenant's tools when its earlier changes here are stored, and again if other processes
    change them at the same time. Returns the tool that was there before. Raises NotFound, Conflict, Limited."""
    store = gateway_of(request).store.added_tools
    audit = Audited(action=action, at=tool.at, by=by, detail=_detail(tool.kind, tool.name))
    pauses = Backoff(FIRST_PAUSE_S, PAUSE_MAX_S, random.Random())
    async with tool_changes_of(request).turn(by.tenant):
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(pauses.next_s())
            tools = await store.tools_of(by.tenant)
            before = tools.find(tool.kind, tool.name)
            _check_match(request, before)
            changed = change(tools)
            try:
                await store.replace(changed, audit)
                return before
            except Conflict:
                continue
    raise tools_conflict()


def _detail(kind: AddedKind, name: str) -> dict[str, Any]:
    return {"kind": kind, "name": name}


def _check_match(request: Request, present: AddedTool | None) -> None:
    """Raises Conflict if the request's `If-Match` names another revision than the present one, or its `If-None-Match`
    names the present one."""
    named = set[str]() if present is None else {"*", _etag(present)}
    wanted = _etags(request, "if-match")
    if wanted and not named & wanted:
        raise Conflict("tool_changed", "It was changed meanwhile: read it and try again.", param="If-Match")
    if named & _etags(request, "if-none-match"):
        raise Conflict("tool_changed", "It is there already.", param="If-None-Match")


def _etags(request: Request, header: str) -> set[str]:
    lines = request.headers.getlist(header)
    return {each.strip().removeprefix("W/") for line in lines for each in line.split(",")}  # W/: it was compressed


def check_readable(tools: AddedTools) -> AddedTools:
    """Returns `tools`. Raises Internal if what is stored of them cannot be read."""
    if not tools.readable:
        raise Internal("body_unreadable", "The stored tools cannot be read: a change of a tool replaces all of them.")
    return tools


def _present(tools: AddedTools, kind: AddedKind, name: str) -> AddedTool:
    tool = check_readable(tools).find(kind, name)
    if tool is None:
        what = "tool" if kind == "tool" else "MCP server"
        raise NotFound("tool_not_found", f"No {what} {name!r} was added.", param=NAME_PARAMS[kind])
    return tool


def _etag(tool: AddedTool) -> str:
    return f'"{tool.revision}"'
