"""What a route needs of its server: the gateway, the turn starter, and the principal who sent the request.

`transport.http_api.app` puts all but the principal into the application's state; handlers are plain functions at module
level.
"""

from __future__ import annotations

from fastapi import Request

from sessions.model.authorization import acting_for, demand
from sessions.model.errors import Unavailable
from sessions.model.types import CommandId, Principal, Scope
from transport.gateway import Gateway
from transport.http.headers import read_retry_headers
from transport.http_api.credential_gate import authenticate
from transport.openai.turn_starter import TurnStarter
from transport.ops.operator_api import OperatorApi
from transport.tenant_turns import TenantTurns
from transport.websocket.handshake import USER_HEADER, single_value
from transport.websocket.inner_requests import SOCKET_TURN, SocketTurn


def gateway_of(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def turn_starter_of(request: Request) -> TurnStarter:
    starter: TurnStarter = request.app.state.turn_starter
    return starter


def tool_changes_of(request: Request) -> TenantTurns:
    changes: TenantTurns = request.app.state.tool_changes
    return changes


def socket_turn_of(request: Request) -> SocketTurn | None:
    """Returns what a Responses WebSocket added to a request that it makes; None for a request over HTTP."""
    turn: SocketTurn | None = getattr(request.state, SOCKET_TURN, None)
    return turn


def operator_api_of(request: Request) -> OperatorApi:
    """Returns the operator's interface to the replicas. Raises Unavailable if this process has none."""
    api = gateway_of(request).operator_api
    if api is None:
        raise Unavailable("no_desk", "This process knows of no replicas.", retryable=False)
    return api


def command_id_of(request: Request, principal: Principal, route: str) -> CommandId:
    """Returns the command id for a request: derived from its Idempotency-Key, or a new one."""
    return turn_starter_of(request).command_id(principal, route, read_retry_headers(request).idempotency_key)


def principal_of(request: Request, scope: Scope | None = None) -> Principal:
    """Returns the principal of a request's credential; with `scope`, demands that it has this scope. Raises
    Unauthorized, Limited, Unavailable, and Forbidden, also for a page of a foreign origin."""
    principal: Principal | None = getattr(request.state, "principal", None)
    if principal is None:  # a path that everybody may read, or a server without keys
        principal = authenticate(gateway_of(request).access, request.headers, request.scope)
        request.state.principal = principal  # the error handler reads it
    principal = acting_for(principal, single_value(request.headers.getlist(USER_HEADER)))
    if scope is not None:
        demand(principal, scope)
    return principal
