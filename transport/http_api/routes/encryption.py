"""`/v1/operator/encryption`: the keys that the journal is encrypted with, for keys of operators.

An action is written into the installation's audit log before it is carried out.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import Field

from sessions.governance.journal_encryption import EncryptionAction, JournalEncryption
from sessions.model.audit import INSTALLATION
from sessions.model.authorization import demand_operator
from sessions.model.errors import BadInput
from sessions.model.types import TenantId
from transport.http_api.context import gateway_of, principal_of
from transport.http_api.strict_json import StrictRoute
from transport.openai import request_models
from transport.openai.response_models import ERRORS


class EncryptionRequest(request_models.RequestModel):
    """A change of the journal's encryption. Without `tenant` it is for all tenants, if the action allows that."""

    action: EncryptionAction
    tenant: Annotated[str, Field(min_length=1, max_length=128)] | None = None


routes = APIRouter(tags=["operations"], route_class=StrictRoute)


def encryption_of(request: Request) -> JournalEncryption:
    demand_operator(principal_of(request))
    encryption = gateway_of(request).encryption
    if encryption is None:
        raise BadInput("not_encrypted", "This journal is not encrypted.")
    return encryption


@routes.get("/v1/operator/encryption", responses=ERRORS)
async def status(request: Request) -> dict[str, Any]:
    """Shows each tenant's keys and how far re-encryption of its older rows is."""
    return {"object": "encryption", **msgspec.to_builtins(await encryption_of(request).status())}


@routes.post("/v1/operator/encryption", responses=ERRORS)
async def act(request: Request, body: EncryptionRequest) -> dict[str, Any]:
    """Rotates, rewraps or destroys keys, or pauses or continues re-encryption."""
    encryption = encryption_of(request)
    detail = {"action": body.action, "tenant": body.tenant}
    await gateway_of(request).audit.record(
        INSTALLATION, "encryption.changed", by=request.state.principal, detail=detail
    )
    change = await encryption.act(body.action, None if body.tenant is None else TenantId(body.tenant))
    return {"object": "encryption.changed", **msgspec.to_builtins(change)}
