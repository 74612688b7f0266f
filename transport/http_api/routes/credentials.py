"""`GET /v1/me`: whom a credential stands for. `POST /v1/ws/tickets`: a key for a ticket. `GET /v1/ws` without an
upgrade: what a WebSocket would be answered.

The pages show by the first what a person can use: a link to the operator page appears for whoever may open it.
Tickets are for clients that cannot set a header on a WebSocket: a backend requests one in the name of one of its users
(`X-Sessile-User`) and hands it to that user's browser.
"""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from sessions.model.authorization import operates
from sessions.model.errors import BadInput
from sessions.model.types import Authority, Scope
from transport.auth.tickets import TICKET_S
from transport.http_api.context import gateway_of, principal_of
from transport.openai.response_models import ERRORS


class PrincipalObject(BaseModel):
    """Who a credential speaks for. `operator`: it may use `/v1/operator/…`; the role alone is not enough for that."""

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
    """Returns the tenant, user, role and scopes of the request's credential."""
    principal = principal_of(request)
    return PrincipalObject(
        object="principal",
        tenant=principal.tenant,
        user=principal.user,
        role=principal.role,
        scopes=list(principal.scopes),
        operator=operates(principal),
    )


@routes.get("/v1/ws", response_model=None, responses=ERRORS, tags=["websocket"])
async def not_upgraded(request: Request) -> Response:
    """Says why a WebSocket cannot be opened here: 503 with `Retry-After` while the server takes no connections, else
    426. Needs no key. A client that gets 426 reaches the server, but something on the way blocks WebSockets: it can
    use `GET /v1/sessions/{id}/events` and `POST /v1/commands` instead."""
    gateway_of(request).check_connectable()
    raise BadInput("upgrade_required", "This is for WebSockets, and the request came without an upgrade.")


@routes.post("/v1/ws/tickets", status_code=201, responses=ERRORS, tags=["websocket"])
async def issue(request: Request, response: Response) -> Ticket:
    """Makes a ticket that opens one WebSocket within 30 s: `GET /v1/ws?ticket=...`."""
    ticket = await gateway_of(request).access.issue_ticket(principal_of(request))
    response.headers["cache-control"] = "no-store"
    return Ticket(ticket=ticket, expires_in=int(TICKET_S))
