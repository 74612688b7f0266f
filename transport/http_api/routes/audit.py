"""`/v1/audit`: the audit log, for those who administer a tenant: rows in their order, and whether the chain is whole.

The log of the installation (`tenant=` with nothing behind it) is the operators'.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request

from sessions.governance.audit_verify import parse_anchor, verify
from sessions.model.audit import INSTALLATION, PAGE_MAX, public
from sessions.model.authorization import demand_administrator
from sessions.model.errors import BadInput
from sessions.model.types import INTEGER_MAX
from transport.http.paging import page_of
from transport.http_api.context import gateway_of, principal_of
from transport.http_api.strict_json import StrictRoute
from transport.openai.response_models import ERRORS

Name = Annotated[str | None, Query(max_length=128)]


routes = APIRouter(tags=["audit"], route_class=StrictRoute)


@routes.get("/v1/audit", responses=ERRORS)
async def rows(
    request: Request,
    tenant: Name = None,
    user: Name = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
    after: Annotated[int, Query(ge=0, le=INTEGER_MAX)] = 0,
) -> dict[str, Any]:
    """Lists the audit rows of a tenant in the order in which they were written. `after` is the last page's `last_id`.
    `user` selects the rows about one end user; rows have hashes of users' names instead of the names."""
    owner = demand_administrator(principal_of(request), tenant)
    audit = gateway_of(request).store.audit
    about = None if user is None else audit.sealer.pseudonyms(owner, user)
    rows_ = await audit.rows(owner, after=after, limit=limit + 1, about=about)
    return page_of(rows_, limit, show=public, cursor=lambda row: row.seq, tenant=owner)


@routes.get("/v1/audit/tenants", responses=ERRORS)
async def tenants(request: Request) -> dict[str, Any]:
    """Lists the tenants that have an audit log, the installation's (`""`) first. For operators."""
    demand_administrator(principal_of(request), INSTALLATION)
    return {"object": "audit.tenants", "data": sorted(await gateway_of(request).store.audit.tenants())}


@routes.get("/v1/audit/verify", responses=ERRORS)
async def verified(
    request: Request,
    tenant: Name = None,
    anchor: Annotated[list[Annotated[str, Query(max_length=128)]] | None, Query(max_length=64)] = None,
) -> dict[str, Any]:
    """Checks a tenant's whole audit log and names the first row that is not as it was written. An `anchor` is one from
    an earlier answer: its row must still be there; `unchecked` counts anchors whose rows were trimmed since."""
    owner = demand_administrator(principal_of(request), tenant)
    try:
        anchors = dict(parse_anchor(each) for each in anchor or ())
    except ValueError as error:
        raise BadInput("invalid_request", f"anchor: {error}.", param="anchor") from error
    verdict = await verify(gateway_of(request).store.audit, owner, anchors=anchors)
    return {"object": "audit.verified", **msgspec.to_builtins(verdict)}
