"""`/v1/operator/revocations`: tokens and sign-ins that end before their time, for keys of operators."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import Field

from sessions.model.audit import INSTALLATION
from sessions.model.authorization import demand_operator
from sessions.model.errors import BadInput, NotFound
from sessions.model.revocations import Revocation, RevocationKind, make_revocation, revocation_audit
from sessions.model.types import INTEGER_MAX, Principal
from transport.auth.revocation_cache import RevocationCache
from transport.http.paging import page_of
from transport.http_api.context import gateway_of, principal_of
from transport.http_api.strict_json import StrictRoute
from transport.openai import request_models
from transport.openai.response_models import ERRORS, ListPage, ResponseModel

Name = Annotated[str, Field(min_length=1, max_length=512)]


class RevocationCreate(request_models.RequestModel):
    """A revocation: with `subject`, of all tokens and sign-ins of a person issued until now; with `token_id`, of one
    token (`jti`) or sign-in. `issuer` may be absent if there is one only. `expires_at`, unix ms: when they expire
    anyway."""

    issuer: Name | None = None
    subject: Name | None = None
    token_id: Name | None = None
    expires_at: Annotated[int, Field(ge=0, le=INTEGER_MAX)] | None = None


class RevocationObject(ResponseModel):
    object: Literal["revocation"]
    id: int
    issuer: str
    kind: RevocationKind
    name: str
    at: int
    expires_at: int
    by: str


class RevocationList(ListPage[RevocationObject]):
    """A page of revocations, newest first."""


routes = APIRouter(tags=["operations"], route_class=StrictRoute)


def revocations_of(request: Request) -> tuple[RevocationCache, Principal]:
    """Returns the revocations and the operator. Raises Forbidden for others, NotFound if the server takes no tokens."""
    principal = principal_of(request)
    demand_operator(principal)
    revocations = gateway_of(request).access.revocations
    if revocations is None:
        raise NotFound("not_found", "This server takes no tokens: there is nothing to revoke.")
    return revocations, principal


def revocation_object(revocation: Revocation) -> RevocationObject:
    fields = msgspec.structs.asdict(revocation)
    return RevocationObject.model_validate({"object": "revocation", "id": fields.pop("version"), **fields})


@routes.post("/v1/operator/revocations", status_code=201, responses=ERRORS)
async def create(request: Request, body: RevocationCreate) -> RevocationObject:
    """Revokes tokens: at once in this process, within a second in others. Their open connections end."""
    revocations, principal = revocations_of(request)
    issuers = gateway_of(request).access.issuers
    issuer = body.issuer or (issuers[0] if len(issuers) == 1 else "")
    if issuer not in issuers:
        raise BadInput("invalid_request", f"issuer: one of {', '.join(issuers)} is expected.", param="issuer")
    revocation = make_revocation(
        issuer,
        subject=body.subject,
        token_id=body.token_id,
        at=gateway_of(request).now_ms(),
        expires_at=body.expires_at,
        by=principal.key_id,
    )
    audit = revocation_audit(revocation, principal)
    return revocation_object(await revocations.add(revocation, audit, INSTALLATION))


@routes.get("/v1/operator/revocations", responses=ERRORS)
async def listed(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[int | None, Query(ge=0, le=INTEGER_MAX)] = None,
) -> RevocationList:
    """Lists the revocations that have not expired, newest first. `after` is the last page's `last_id`."""
    revocations, _ = revocations_of(request)
    await revocations.refresh()
    unexpired = [each for each in revocations.all() if after is None or each.version < after]
    page = page_of(unexpired, limit, show=revocation_object, cursor=lambda each: str(each.version))
    return RevocationList.model_validate(page)
