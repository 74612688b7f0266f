"""`/v1/users/{user}`: exports or erases everything of one end user, for those who administer the tenant.
`/v1/memories`: what a user has written down for their later conversations.

An erasure is durable when it is answered with 202, and 200 says that it is done; `GET` shows how far it is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Final, Literal

import msgspec
import structlog
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from sessions.governance.end_user_data import Erasure, KeptForUsers, export_user_data, memory_fields, status
from sessions.model.audit import Audited
from sessions.model.authorization import demand_administrator, demand_custody
from sessions.model.errors import BadInput, Forbidden, NotFound, SessileError
from sessions.model.inspection import Refused, RefusedText
from sessions.model.memories import TEXT_MAX, MemoryId, UserMemory, memory_not_found, owner_of
from sessions.model.types import Principal
from sessions.retrieval.deleted_uploads import remove_deleted_uploads
from transport import errors
from transport.gateway import Gateway
from transport.http_api.break_glass import Reason, record_break_glass
from transport.http_api.context import gateway_of, principal_of
from transport.http_api.strict_json import StrictRoute
from transport.model_catalog import card
from transport.openai.request_models import RequestModel
from transport.openai.response_models import ERRORS, Answers, ResponseModel

User = Annotated[str, Path(min_length=1, max_length=128)]
Tenant = Annotated[str | None, Query(min_length=1, max_length=128)]
JSON_LINES = "application/x-ndjson"
_LINES: Final[Answers] = {
    **ERRORS,
    200: {"content": {JSON_LINES: {"itemSchema": {"type": "object"}}}, "description": "JSON lines"},
}


class ErasureObject(ResponseModel):
    """The erasure of one end user. `under_way` means that it is recorded and will be finished by the server."""

    object: Literal["user.erasure"]
    tenant: str
    user: str
    status: Literal["under_way", "done"]
    asked_at: int
    done_at: int | None


_ERASED: Final[Answers] = {**ERRORS, 200: {"model": ErasureObject, "description": "Done"}}

log = structlog.get_logger(__name__)
_encode = msgspec.json.Encoder().encode


class MemoryText(RequestModel):
    text: Annotated[str, Field(min_length=1, max_length=TEXT_MAX)]


class MemoryObject(ResponseModel):
    object: Literal["memory"] = "memory"
    id: str
    text: str
    created_at: int
    updated_at: int


class MemoryList(ResponseModel):
    """All memories of an end user, oldest first."""

    object: Literal["list"] = "list"
    data: list[MemoryObject]


routes = APIRouter(tags=["users"], route_class=StrictRoute)


@routes.get("/v1/users/{user:path}/export", response_class=StreamingResponse, responses=_LINES)
async def export(request: Request, user: User, tenant: Tenant = None, reason: Reason = None) -> Response:
    """Exports all about an end user as JSON lines: sessions, items, usage, audit rows. The last line counts them.
    Another tenant's (`tenant`) needs the scope `break_glass` and a `reason`."""
    gateway, principal = gateway_of(request), principal_of(request)
    owner, store, at = demand_custody(principal, tenant, reason), gateway.store, gateway.now_ms()
    gateway.audit.take_export(principal)
    await record_break_glass(gateway, principal, owner, "user.exported", reason)
    row = Audited(action="user.exported", at=at, by=principal, user=user)
    await store.audit.record(owner, [row])

    async def lines() -> AsyncGenerator[bytes, None]:
        try:
            async for each in export_user_data(
                owner,
                user,
                personal=store.end_users,
                kept=KeptForUsers(store.push, store.files),
                journal=store.journal,
                usage=store.usage,
                audit=store.audit,
                at=at,
            ):
                yield _encode(each) + b"\n"
        except SessileError as error:  # the answer has begun: it ends without its last line, and says why
            log.error("export_failed", error=error.code)
            yield _encode({"object": "error", "error": errors.public(error)}) + b"\n"

    return StreamingResponse(lines(), media_type=JSON_LINES, headers={"cache-control": "no-store"})


@routes.post("/v1/users/{user:path}/erase", status_code=202, responses=_ERASED)
async def erase(
    request: Request, user: User, response: Response, tenant: Tenant = None, reason: Reason = None
) -> ErasureObject:
    """Erases an end user for good: deletes and purges all their sessions at once, destroys their keys and KV, removes
    the name from usage and revokes their API keys. Another tenant's (`tenant`) needs the scope `break_glass` and a
    `reason`."""
    gateway, principal = gateway_of(request), principal_of(request)
    owner, store, at = demand_custody(principal, tenant, reason), gateway.store, gateway.now_ms()
    await record_break_glass(gateway, principal, owner, "user.erasure_asked", reason)
    row = Audited(action="user.erasure_asked", at=at, by=principal, user=user)
    erasure = await store.end_users.request_erasure(
        Erasure(tenant=owner, user=user, asked_at=at, asked_by=principal.key_id), row
    )
    stores = None if gateway.retrieval is None else gateway.retrieval.vector_stores
    if stores is not None:
        await stores.passages.forget_user(owner, user)
    await gateway.sweep_erasures()
    if stores is not None:  # the user's files in stores of others
        await remove_deleted_uploads(stores.passages, store.files, gateway.now_ms, owner)
    erasure = await store.end_users.find(owner, user) or erasure
    if erasure.done_at is not None and gateway.keys is not None:
        await gateway.keys.refresh()  # their keys open nothing any more, here at once
    response.status_code = 202 if erasure.done_at is None else 200
    return ErasureObject.model_validate(status(erasure, user))


@routes.get("/v1/users/{user:path}/erase", responses=ERRORS)
async def erasing(request: Request, user: User, tenant: Tenant = None) -> ErasureObject:
    """Shows whether the newest erasure of an end user is done."""
    owner = demand_administrator(principal_of(request), tenant)
    erasure = await gateway_of(request).store.end_users.find(owner, user)
    if erasure is None:
        raise NotFound("erasure_not_found", "No erasure of this user was requested.", param="user")
    return ErasureObject.model_validate(status(erasure, user))


# -- memories ---------------------------------------------------------------------------------------------------------


def _writer(request: Request) -> tuple[Principal, str]:
    """Returns the principal, and the end user whose memories it may change. Raises Forbidden, BadInput."""
    principal = principal_of(request, "chat")
    table = gateway_of(request).table(principal.tenant)
    if table is None or not table.memories:
        raise Forbidden("memories_disabled", "This tenant keeps no memories of its users: see docs/limits.md.")
    return principal, owner_of(principal)


@routes.get("/v1/memories", responses=ERRORS)
async def memories(request: Request) -> MemoryList:
    """Lists the caller's memories, with which later sessions begin if the tenant's limits allow memories."""
    principal = principal_of(request, "read")
    kept = await gateway_of(request).store.end_users.memories(principal.tenant, owner_of(principal))
    return MemoryList(data=[MemoryObject(**memory_fields(each)) for each in kept])


@routes.post("/v1/memories", status_code=201, responses=ERRORS)
async def remember(request: Request, body: MemoryText) -> MemoryObject:
    """Stores a memory for sessions that are created from now on."""
    gateway, (principal, user) = gateway_of(request), _writer(request)
    await _check_text(gateway, principal, body.text)
    at = gateway.now_ms()
    memory = UserMemory(
        id=MemoryId(f"mem_{gateway.new_id()}"),
        tenant=principal.tenant,
        user=user,
        text=body.text,
        created_at=at,
        updated_at=at,
    )
    await gateway.store.end_users.add_memory(memory)
    return MemoryObject(**memory_fields(memory))


@routes.patch("/v1/memories/{memory_id}", responses=ERRORS)
async def revise(request: Request, memory_id: str, body: MemoryText) -> MemoryObject:
    """Replaces the text of a memory. Sessions that began with it keep the old text."""
    gateway, (principal, user) = gateway_of(request), _writer(request)
    await _check_text(gateway, principal, body.text)
    changed = await gateway.store.end_users.change_memory(
        principal.tenant, user, MemoryId(memory_id), text=body.text, at=gateway.now_ms()
    )
    if changed is None:
        raise memory_not_found(memory_id)
    return MemoryObject(**memory_fields(changed))


@routes.delete("/v1/memories/{memory_id}", status_code=204, responses=ERRORS)
async def forget(request: Request, memory_id: str) -> None:
    """Removes a memory; also if the tenant's limits do not allow memories any more."""
    principal = principal_of(request, "chat")
    user, store = owner_of(principal), gateway_of(request).store.end_users
    if not await store.remove_memory(principal.tenant, user, MemoryId(memory_id)):
        raise memory_not_found(memory_id)


async def _check_text(gateway: Gateway, principal: Principal, text: str) -> None:
    """Raises BadInput `content_filter` if the filters for messages refuse a text."""
    model = card(gateway.models, None)
    refused = await gateway.inspect(principal, model.id, RefusedText(text))
    assert isinstance(refused, Refused)
    if refused.message is not None:
        raise BadInput("content_filter", refused.message, param="text")
