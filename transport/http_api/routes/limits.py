"""`/v1/limits`: what a tenant may take, as the limits file says now, and how much KV it holds against its bound.

KV is bounded at each replica by itself (docs/limits.md), so it is shown by replica, as each says at this moment: on the
device, in host memory, on disk and in Redis, copies counted. In Redis a replica counts what it knows of, so what two of
them know of is in both figures, and `held_bytes`, their sum, is never too small where it is `complete`. An engine that
does not count says null. Where the buckets of requests and tokens stand is in the headers of each turn's answer.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request

from sessions.model.authorization import demand_administrator
from transport.http_api.context import gateway_of, operator_api_of, principal_of
from transport.http_api.strict_json import StrictRoute
from transport.openai.response_models import ERRORS

Name = Annotated[str | None, Query(min_length=1, max_length=128)]
COVERS = "each replica by itself, at this moment: device, host memory, disk, and what it knows of in Redis"


routes = APIRouter(tags=["limits"], route_class=StrictRoute)


@routes.get("/v1/limits", responses=ERRORS)
async def limits(request: Request, tenant: Name = None) -> dict[str, Any]:
    """Shows a tenant's limits and the KV that it holds. For administrators of the tenant; `tenant`, another one, is for
    operators. `limits` is null if none are set."""
    owner = demand_administrator(principal_of(request), tenant)
    gateway = gateway_of(request)
    kv = await operator_api_of(request).kv_of(owner)
    table = gateway.table(owner)
    counted = [count for count in kv.bytes_of.values() if count is not None]
    return {
        "object": "limits",
        "tenant": owner,
        "limits": None if table is None else msgspec.to_builtins(table),
        "kv": {
            "covers": COVERS,
            "limit_bytes": None if table is None else table.kv_bytes,
            "held_bytes": sum(counted) if counted else None,
            "complete": len(counted) == len(kv.bytes_of) and not kv.silent,
            "replicas": [{"replica": name, "held_bytes": count} for name, count in sorted(kv.bytes_of.items())],
            "silent": kv.silent,
        },
    }
