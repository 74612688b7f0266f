"""`GET /v1/me`: whom a credential stands for. `POST /v1/ws/tickets`: a key for a ticket.

The pages show by the first what a person can use: a link to the operator page appears for whoever may open it.
Tickets are for clients that cannot set a header on a WebSocket: a backend requests one in the name of one of its users
(`X-Sessile-User`) and hands it to that user's browser.
"""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from sessions.model.authorization import operates
from sessions.model.types import Authority, Scope
from transport.auth.tickets import TICKET_S
from transport.http.context import gateway_of, principal_of
from transport.openai.response_models import ERRORS


class PrincipalObject(BaseModel):
    """`operator`: `/v1/operator/…` answers; an operator's role alone is not enough for that."""

    object: Literal["principal"]
    tenant: str
    user: str | None
    role: Authority
    scopes: list[Scope]
    operator: bool


class Ticket(BaseModel):
    ticket: str
    expires_in: int


routes = APIRouter()


@routes.get("/v1/me", responses=ERRORS, tags=["keys"])
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


@routes.post("/v1/ws/tickets", status_code=201, responses=ERRORS, tags=["websocket"])
async def issue(request: Request, response: Response) -> Ticket:
    """A ticket that opens one WebSocket within 30 s: `GET /v1/ws?ticket=...`."""
    ticket = await gateway_of(request).access.issue_ticket(principal_of(request))
    response.headers["cache-control"] = "no-store"
    return Ticket(ticket=ticket, expires_in=int(TICKET_S))
