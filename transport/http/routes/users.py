"""`/v1/users/{user}`: exports or erases everything of one end user, for those who administer the tenant.

An erasure is durable when it is answered with 202, and 200 says that it is done; `GET` shows how far it is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Final, Literal

import msgspec
import structlog
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from sessions.governance.end_user_data import Erasure, export_user_data, status
from sessions.model.audit import Audited
from sessions.model.authorization import demand_administrator, demand_custody
from sessions.model.errors import NotFound, SessileError
from transport import errors
from transport.http.break_glass import Reason, record_break_glass
from transport.http.context import gateway_of, principal_of
from transport.http.strict_json import StrictRoute
from transport.openai.response_models import ERRORS, Answers, ResponseModel

User = Annotated[str, Path(min_length=1, max_length=128)]
Tenant = Annotated[str | None, Query(min_length=1, max_length=128)]
JSON_LINES = "application/x-ndjson"
_LINES: Final[Answers] = {
    **ERRORS,
    200: {"content": {JSON_LINES: {"itemSchema": {"type": "object"}}}, "description": "JSON lines"},
}


class ErasureObject(ResponseModel):
    """`under_way` is written down and ends by itself."""

    object: Literal["user.erasure"]
    tenant: str
    user: str
    status: Literal["under_way", "done"]
    asked_at: int
    done_at: int | None


_ERASED: Final[Answers] = {**ERRORS, 200: {"model": ErasureObject, "description": "Done"}}

log = structlog.get_logger(__name__)
_encode = msgspec.json.Encoder().encode


routes = APIRouter(tags=["users"], route_class=StrictRoute)


@routes.get("/v1/users/{user:path}/export", response_class=StreamingResponse, responses=_LINES)
async def export(request: Request, user: User, tenant: Tenant = None, reason: Reason = None) -> Response:
    """Sessions, items, usage and rows of the audit log, as JSON lines; the last line counts them. Another tenant's
    (`tenant`) needs the scope `break_glass` and a `reason`."""
    gateway, principal = gateway_of(request), principal_of(request)
    owner, store, at = demand_custody(principal, tenant, reason), gateway.store, gateway.now_ms()
    await record_break_glass(gateway, principal, owner, "user.exported", reason)
    row = Audited(action="user.exported", at=at, by=principal, user=user)
    await store.audit.record(owner, [row])

    async def lines() -> AsyncGenerator[bytes, None]:
        try:
            async for each in export_user_data(
                owner,
                user,
                personal=store.end_users,
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
    """Deletes and purges every session of theirs at once, destroys its keys, erases its KV, takes the name out of
    usage, and revokes their keys. For good. Another tenant's (`tenant`) needs the scope `break_glass` and a
    `reason`."""
    gateway, principal = gateway_of(request), principal_of(request)
    owner, store, at = demand_custody(principal, tenant, reason), gateway.store, gateway.now_ms()
    await record_break_glass(gateway, principal, owner, "user.erasure_asked", reason)
    row = Audited(action="user.erasure_asked", at=at, by=principal, user=user)
    erasure = await store.end_users.request_erasure(
        Erasure(tenant=owner, user=user, asked_at=at, asked_by=principal.key_id), row
    )
    await gateway.sweep_erasures()
    erasure = await store.end_users.find(owner, user) or erasure
    if erasure.done_at is not None and gateway.keys is not None:
        await gateway.keys.refresh()  # their keys open nothing any more, here at once
    response.status_code = 202 if erasure.done_at is None else 200
    return ErasureObject.model_validate(status(erasure, user))


@routes.get("/v1/users/{user:path}/erase", responses=ERRORS)
async def erasing(request: Request, user: User, tenant: Tenant = None) -> ErasureObject:
    """How far the newest erasure is."""
    owner = demand_administrator(principal_of(request), tenant)
    erasure = await gateway_of(request).store.end_users.find(owner, user)
    if erasure is None:
        raise NotFound("erasure_not_found", "No erasure of this user was requested.", param="user")
    return ErasureObject.model_validate(status(erasure, user))
