"""`GET /v1/me`: whom the server takes the bearer of a credential for, and what they may do.

The pages show by it what a person can use: a link to the operator page appears for whoever may open it.
"""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from sessions.model.authorization import operates
from sessions.model.types import Authority, Scope
from transport.http.context import principal_of
from transport.openai.response_models import ERRORS


class PrincipalObject(BaseModel):
    """`operator`: `/v1/operator/…` answers; an operator's role alone is not enough for that."""

    object: Literal["principal"]
    tenant: str
    user: str | None
    role: Authority
    scopes: list[Scope]
    operator: bool


routes = APIRouter(tags=["keys"])


@routes.get("/v1/me", responses=ERRORS)
async def me(request: Request) -> PrincipalObject:
    """The principal of this request's credential."""
    principal = principal_of(request)
    return PrincipalObject(
        object="principal",
        tenant=principal.tenant,
        user=principal.user,
        role=principal.role,
        scopes=list(principal.scopes),
        operator=operates(principal),
    )
