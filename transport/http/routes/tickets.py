"""`POST /v1/ws/tickets`: a key for a ticket, for clients that cannot set a header on a WebSocket.

A backend requests a ticket in the name of one of its users (`X-Sessile-User`) and hands it to that user's browser."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from transport.auth.tickets import TICKET_S
from transport.http.context import gateway_of, principal_of
from transport.openai.response_models import ERRORS


class Ticket(BaseModel):
    ticket: str
    expires_in: int


routes = APIRouter(tags=["websocket"])


@routes.post("/v1/ws/tickets", status_code=201, responses=ERRORS)
async def issue(request: Request, response: Response) -> Ticket:
    """A ticket that opens one WebSocket within 30 s: `GET /v1/ws?ticket=...`."""
    ticket = await gateway_of(request).access.issue_ticket(principal_of(request))
    response.headers["cache-control"] = "no-store"
    return Ticket(ticket=ticket, expires_in=int(TICKET_S))
