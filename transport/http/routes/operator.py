"""`/v1/operator/…`: what the operator page shows and does, for keys of operators
(`sessions.model.authorization.demand_operator`).

Reads are of this moment and are not kept. The page itself is static and lies at `/operator`
(`transport.http.routes.page`); without a key it shows nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request

from actors.maintenance.introspection import PAGE_MAX
from sessions.metrics import Histogram, Metrics
from sessions.model.audit import INSTALLATION, Action
from sessions.model.authorization import demand_operator
from sessions.model.errors import BadInput
from sessions.model.types import SessionId, SessionKey, TenantId
from transport.gateway import Gateway
from transport.http.context import gateway_of, operator_api_of, principal_of
from transport.http.strict_json import StrictRoute
from transport.openai import request_models
from transport.openai.response_models import ERRORS
from transport.ops.operator_api import OperatorApi, resident_shown
from transport.ops.operator_requests import SessionQuery

Name = Annotated[str, Path(max_length=256)]
Filter = Annotated[str, Query(max_length=256)]
State = Literal["", "loading", "idle", "turn", "sealed", "fenced", "gone"]


class HandOff(request_models.RequestModel):
    """`replica` has the session; `to` takes it: absent, where placement would have it."""

    replica: str
    to: str = ""


routes = APIRouter(tags=["operations"], route_class=StrictRoute)


def operator_api(request: Request) -> OperatorApi:
    demand_operator(principal_of(request))
    return operator_api_of(request)


async def audit(request: Request, tenant: TenantId, action: Action, **about: Any) -> None:
    """Writes an action into the audit log before it is carried out. Raises Unavailable."""
    await gateway_of(request).audit.record(tenant, action, by=request.state.principal, **about)


@routes.get("/v1/operator/overview", responses=ERRORS)
async def overview(request: Request) -> dict[str, Any]:
    """Replicas with their load, and how well readers are served by this process."""
    gateway = gateway_of(request)
    return {
        "object": "overview",
        "version": request.app.version,
        "draining": gateway.draining,
        "replicas": await operator_api(request).replicas(),
        "health": slo_summary(gateway.measures),
        "doors": connection_counts(gateway),
    }


@routes.get("/v1/operator/sessions", responses=ERRORS)
async def sessions(
    request: Request,
    replica: Filter = "",
    tenant: Filter = "",
    session: Filter = "",
    state: State = "",
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
    after: Annotated[str, Query(max_length=512)] = "",
) -> dict[str, Any]:
    """The sessions in memory: where, why there, KV, open answers. `after`: TENANT/SESSION, as `last_id` says it."""
    if after and "/" not in after:
        raise BadInput("invalid_request", "`after` is the `last_id` of a page: TENANT/SESSION.", param="after")
    query = SessionQuery(replica=replica, tenant=tenant, session=session, state=state, after=after, limit=limit)
    page = await operator_api(request).sessions(query)
    return {
        "object": "list",
        "data": [resident_shown(each) for each in page.residents],
        "total": page.total,
        "has_more": page.has_more,
        "last_id": "/".join(page.residents[-1].key) if page.residents else None,
        "silent": page.silent,
    }


@routes.post("/v1/operator/replicas/{replica}/drain", status_code=202, responses=ERRORS)
async def drain(request: Request, replica: Name) -> dict[str, Any]:
    """Begins to hand everything off; the overview shows how far it is."""
    replicas = operator_api(request)
    await audit(request, INSTALLATION, "replica.drain_asked", detail={"replica": replica})
    await replicas.drain(replica)
    return {"object": "replica.draining", "replica": replica}


@routes.post("/v1/operator/sessions/{tenant}/{session}/handoff", responses=ERRORS)
async def hand_off(request: Request, tenant: Name, session: Name, body: HandOff) -> dict[str, Any]:
    """Moves one session; readers do not notice."""
    replicas = operator_api(request)
    detail = {"replica": body.replica, "to": body.to}
    await audit(request, TenantId(tenant), "session.hand_off_asked", session=session, detail=detail)
    owner = await replicas.hand_off(body.replica, SessionKey(TenantId(tenant), SessionId(session)), body.to)
    return {"object": "session.handed_off", "tenant": tenant, "session": session, "replica": owner}


def slo_summary(measures: Metrics) -> dict[str, Any]:
    """Of the answers that this process wrote since it started; None where it wrote none."""
    met, missed = (measures.in_target.values.get((each,), 0) for each in ("true", "false"))
    return {
        "answers": sum(measures.responses.values.values()),
        "decoding": measures.num_decoding,
        "ttft_s": quantiles(measures.ttft_s),
        "tpot_s": quantiles(measures.tpot_s),
        "inter_token_s": quantiles(measures.itl_s),
        "journal_s": quantiles(measures.journal_s),
        "in_target": met / (met + missed) if met + missed else None,
        "recomputed_tokens": measures.recomputed_tokens.total,
        "withheld_tokens": measures.withheld_tokens.total,
        "activations": {labels[0]: count for labels, count in measures.activations.values.items()},
        "ended": {labels[0]: count for labels, count in measures.responses.values.items()},
    }


def quantiles(histogram: Histogram) -> dict[str, float | None]:
    return {"p50": histogram.quantile(0.5), "p95": histogram.quantile(0.95), "p99": histogram.quantile(0.99)}


def connection_counts(gateway: Gateway) -> dict[str, Any]:
    counters = gateway.counters
    return {
        "feeds": len(gateway.feeds),
        "commands": gateway.measures.commands.total,
        "refused": {labels[0]: count for labels, count in gateway.measures.refused.values.items()},
        "connections": counters["connections"],
        "slow_readers": counters["closed_4408"],
        "resumes": {
            name.removeprefix("resumed_"): count for name, count in counters.items() if name.startswith("resumed_")
        },
    }
