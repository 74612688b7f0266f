"""`POST /v1/ws/tickets`: a key for a ticket, for clients that cannot set a header on a WebSocket.

A backend asks for a ticket in the name of one of its users (`X-Sessile-User`) and hands it to that user's browser."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from sessions.model.authorization import acting_for, demand
from sessions.model.types import Principal, Scope
from transport.auth.tickets import TICKET_S
from transport.gateway import Gateway
from transport.openai.response_models import ERRORS
from transport.websocket.handshake import USER_HEADER, bearer


class Ticket(BaseModel):
    ticket: str
    expires_in: int


def principal_of(request: Request, gateway: Gateway, scope: Scope | None = None) -> Principal:
    """Who asks, by the Authorization header, and that they may do things of the kind `scope` at all. Raises
    Unauthorized, Limited, and Forbidden, for a foreign page too."""
    gateway.access.check_origin(request.headers.get("origin"), request.headers.get("host"))
    address = request.client.host if request.client is not None else None
    principal = gateway.access.authenticate(bearer(request.headers.getlist("authorization")), address)
    request.state.principal = principal  # for whoever answers a refusal
    principal = acting_for(principal, request.headers.get(USER_HEADER))
    if scope is not None:
        demand(principal, scope)
    return principal


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter(tags=["websocket"])

    @routes.post("/v1/ws/tickets", status_code=201, responses=ERRORS)
    async def issue(request: Request, response: Response) -> Ticket:
        """A ticket that opens one WebSocket within 30 s: `GET /v1/ws?ticket=...`."""
        ticket = await gateway.access.issue_ticket(principal_of(request, gateway))
        response.headers["cache-control"] = "no-store"
        return Ticket(ticket=ticket, expires_in=int(TICKET_S))

    return routes
