"""`/v1/tools`: what administrators have added, what MCP servers list, what of it is held back, and agreeing to that.

A tenant's administrators see and agree to what their own servers have; to what servers of all have, operators alone.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import Field

from sessions.model.audit import Audited
from sessions.model.authorization import demand_administrator, demand_operator, operates
from sessions.model.errors import Conflict, NotFound
from sessions.model.types import Principal, TenantId
from sessions.tool_records import EVERYBODY, ToolListing, ToolPin, ToolRecord, ToolRecordKind, ToolRecordStore
from transport.http_api.context import gateway_of, principal_of
from transport.http_api.routes.added_tools import AddedToolObject, check_readable, tool_object
from transport.http_api.strict_json import StrictRoute
from transport.openai.request_models import RequestModel
from transport.openai.response_models import ERRORS, ListPage, ResponseModel

Label = Annotated[str, Field(min_length=1, max_length=32)]
ToolName = Annotated[str, Field(min_length=1, max_length=64)]


class HeldTool(ResponseModel):
    """A tool that models do not see until an administrator agrees. `digest` is the hash of all that it says of itself;
    null if nobody can agree to it."""

    name: str
    reason: str
    digest: str | None
    description: str | None


class ToolServerObject(ResponseModel):
    """An MCP server with its tools. `tenant` is null for a server of all tenants."""

    object: Literal["tool_server"] = "tool_server"
    server: str
    tenant: str | None
    listed_at: int
    tools: list[str]
    held: list[HeldTool]


class ToolServerList(ListPage[ToolServerObject | AddedToolObject]):
    """MCP servers with the tools that they listed last, and the tools and servers that administrators have added."""


class ToolAgreement(RequestModel):
    """Tools that an administrator agrees to. `tools` has their digests as listed, by name: a tool that has changed
    since is refused. `everybody`: the server is one of all tenants."""

    server: Label
    tools: Annotated[
        dict[ToolName, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]], Field(min_length=1, max_length=512)
    ]
    everybody: bool = False


routes = APIRouter(tags=["tools"], route_class=StrictRoute)


@routes.get("/v1/tools", responses=ERRORS)
async def listed(request: Request, tenant: Annotated[str | None, Query(max_length=128)] = None) -> ToolServerList:
    """Lists a tenant's MCP servers with the tools that they listed last (for operators also those of all tenants), and
    the tools and servers that its administrators have added."""
    principal = principal_of(request)
    owner = demand_administrator(principal, tenant)
    store = gateway_of(request).store.tool_records
    records = list(await store.records("listing", owner))
    if operates(principal):
        records += await store.records("listing", EVERYBODY)
    added = check_readable(await gateway_of(request).store.added_tools.tools_of(owner)).tools
    data: list[ResponseModel] = [_server_object(record) for record in records]
    data += [await tool_object(request, owner, tool) for tool in added]
    return ToolServerList.model_validate({"object": "list", "data": data, "last_id": None, "has_more": False})


@routes.post("/v1/tools/agreements", status_code=201, responses=ERRORS)
async def agree(request: Request, body: ToolAgreement) -> ToolServerObject:
    """Agrees to the present descriptions of a server's tools. Models see the tools within seconds."""
    principal = principal_of(request)
    owner = _owner(principal, body)
    gateway = gateway_of(request)
    store = gateway.store.tool_records
    record = await _record(store, "listing", owner, body.server)
    if record is None:
        raise NotFound("tool_not_found", f"There is no MCP server {body.server!r}.", param="server")
    waiting = msgspec.json.decode(record.body, type=ToolListing).waiting
    for name, digest in body.tools.items():
        if name not in waiting:
            raise NotFound("tool_not_found", f"No tool {name!r} of it waits for an agreement.", param=f"tools.{name}")
        if waiting[name][0] != digest:
            raise Conflict("tool_changed", f"The tool {name!r} says something else by now.", param=f"tools.{name}")
    before = await _record(store, "pin", owner, body.server)
    known = {} if before is None else msgspec.json.decode(before.body, type=ToolPin).digests
    agreed = msgspec.json.encode(ToolPin(digests={**known, **body.tools})).decode()
    now, names = gateway.now_ms(), sorted(body.tools)
    detail = {"server": body.server, "tools": names, "digests": [body.tools[name] for name in names]}
    pin = ToolRecord(tenant=owner, kind="pin", name=body.server, body=agreed, at=now, by=principal.key_id)
    await store.put(pin, Audited(action="tool.agreed", at=now, by=principal, detail=detail))
    return _server_object(record)


async def _record(store: ToolRecordStore, kind: ToolRecordKind, owner: TenantId, server: str) -> ToolRecord | None:
    return next((each for each in await store.records(kind, owner) if each.name == server), None)


def _owner(principal: Principal, body: ToolAgreement) -> TenantId:
    if body.everybody:
        demand_operator(principal)
        return EVERYBODY
    return demand_administrator(principal)


def _server_object(record: ToolRecord) -> ToolServerObject:
    listing = msgspec.json.decode(record.body, type=ToolListing)
    held = []
    for name, reason in sorted(listing.held.items()):
        digest, description = listing.waiting.get(name, (None, None))
        held.append(HeldTool(name=name, reason=reason, digest=digest, description=description))
    return ToolServerObject(
        server=record.name,
        tenant=None if record.tenant == EVERYBODY else record.tenant,
        listed_at=record.at,
        tools=list(listing.shown),
        held=held,
    )
