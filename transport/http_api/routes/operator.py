"""`/v1/operator/…`: what the operator page shows and does, for keys of operators
(`sessions.model.authorization.demand_operator`).

Reads are of this moment and are not kept. The page itself is static and lies at `/operator`
(`transport.http_api.routes.page`); without a key it shows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request

from actors.maintenance.resident_states import PAGE_MAX
from actors.peer.frames import Measured
from actors.peer.links import LinkDown
from sessions.metrics import SHORT_S, TOKEN_S, TURN_S, quantile_of
from sessions.model.audit import INSTALLATION, Action
from sessions.model.authorization import demand_operator
from sessions.model.errors import BadInput
from sessions.model.types import SessionId, SessionKey, TenantId
from sessions.service_totals import ServiceTotals, sum_of
from transport.gateway import Gateway
from transport.http_api.context import gateway_of, operator_api_of, principal_of
from transport.http_api.strict_json import StrictRoute
from transport.openai import request_models
from transport.openai.response_models import ERRORS
from transport.ops.load_series import RANGE_MAX_S, RANGE_MIN_S, series_of, step_of, times_of
from transport.ops.operator_api import OperatorApi, resident_shown
from transport.ops.operator_requests import SessionQuery

Name = Annotated[str, Path(max_length=256)]
Filter = Annotated[str, Query(max_length=256)]
State = Literal["", "loading", "idle", "turn", "sealed", "fenced", "gone"]


class HandOff(request_models.RequestModel):
    """A request to move a session from `replica` to the replica `to`; without `to`, placement chooses one."""

    replica: str
    to: str = ""


routes = APIRouter(tags=["operations"], route_class=StrictRoute)


def operator_api(request: Request) -> OperatorApi:
    demand_operator(principal_of(request))
    return operator_api_of(request)


async def audit(request: Request, tenant: TenantId, action: Action, **about: Any) -> None:
    """Writes an operator's action into the audit log before it is carried out. Raises Unavailable."""
    await gateway_of(request).audit.record(tenant, action, by=request.state.principal, **about)


@routes.get("/v1/operator/overview", responses=ERRORS)
async def overview(request: Request) -> dict[str, Any]:
    """Shows replicas with their load, service quality over all of them, and this process's connections."""
    api, gateway = operator_api(request), gateway_of(request)
    replicas, measured = await api.replicas(), await api.measure()
    answers = {name: each for name, each in measured.items() if isinstance(each, Measured)}
    sessions = {name: each.sessions for name, each in answers.items()}
    return {
        "object": "overview",
        "version": request.app.version,
        "draining": gateway.draining,
        "replicas": [{**each, "sessions": sessions.get(each["replica"])} for each in replicas],
        "health": slo_summary(sum_of(each.totals for each in answers.values())),
        "replication_lag_s": gateway.replication_lag_s(),
        "doors": connection_counts(gateway),
        "silent": silent_of(measured),
    }


@routes.get("/v1/operator/series", responses=ERRORS)
async def series(
    request: Request,
    range_s: Annotated[int, Query(ge=RANGE_MIN_S, le=RANGE_MAX_S)] = 3600,
    replica: Filter = "",
) -> dict[str, Any]:
    """Shows load over the last `range_s` seconds, of all replicas or one, as columns of at most 360 points for charts.

    A point stands for the `step_s` seconds before its time; it is null if no replica ran. A replica that has ended is
    not in the history any more."""
    api = operator_api(request)
    times, step_s = times_of(gateway_of(request).now_ms() // 1000, range_s), step_of(range_s)
    measured = await api.measure(replica, after=times[0] - step_s, step_s=step_s)
    samples = [sample for each in measured.values() if isinstance(each, Measured) for sample in each.samples]
    return {"object": "series", "step_s": step_s, **series_of(times, samples), "silent": silent_of(measured)}


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
    """Lists the sessions in memory: replica, reason, KV, open answers. `after` is the last page's `last_id`:
    TENANT/SESSION."""
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
    """Starts to drain a replica: all its sessions are handed off. The overview shows how far it is."""
    replicas = operator_api(request)
    await audit(request, INSTALLATION, "replica.drain_asked", detail={"replica": replica})
    await replicas.drain(replica)
    return {"object": "replica.draining", "replica": replica}


@routes.post("/v1/operator/replicas/{replica}/undrain", responses=ERRORS)
async def undrain(request: Request, replica: Name) -> dict[str, Any]:
    """Ends a drain, finished or not: the replica takes sessions again."""
    replicas = operator_api(request)
    await audit(request, INSTALLATION, "replica.undrain_asked", detail={"replica": replica})
    await replicas.undrain(replica)
    return {"object": "replica.serving", "replica": replica}


@routes.post("/v1/operator/sessions/{tenant}/{session}/handoff", responses=ERRORS)
async def hand_off(request: Request, tenant: Name, session: Name, body: HandOff) -> dict[str, Any]:
    """Moves one session to another replica. Its readers notice nothing."""
    replicas = operator_api(request)
    detail = {"replica": body.replica, "to": body.to}
    await audit(request, TenantId(tenant), "session.hand_off_asked", session=session, detail=detail)
    owner = await replicas.hand_off(body.replica, SessionKey(TenantId(tenant), SessionId(session)), body.to)
    return {"object": "session.handed_off", "tenant": tenant, "session": session, "replica": owner}


def silent_of(measured: Mapping[str, Measured | LinkDown]) -> dict[str, str]:
    """Returns the replicas that did not answer, each with the reason."""
    return {name: str(each) for name, each in measured.items() if isinstance(each, LinkDown)}


def slo_summary(totals: ServiceTotals) -> dict[str, Any]:
    """Returns the service quality, computed from all answers that the replicas have written since they started. Figures
    without data are None."""
    judged = totals.met + totals.missed
    return {
        "answers": sum(totals.ended.values()),
        "decoding": totals.decoding,
        "ttft_s": quantiles(TURN_S, totals.ttft),
        "tpot_s": quantiles(TOKEN_S, totals.tpot),
        "inter_token_s": quantiles(TOKEN_S, totals.itl),
        "journal_s": quantiles(SHORT_S, totals.journal),
        "in_target": totals.met / judged if judged else None,
        "recomputed_tokens": totals.recomputed_tokens,
        "withheld_tokens": totals.withheld_tokens,
        "activations": totals.activations,
        "ended": totals.ended,
    }


def quantiles(bounds: Sequence[float], counts: Sequence[int]) -> dict[str, float | None]:
    return {name: quantile_of(bounds, counts, share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}


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
