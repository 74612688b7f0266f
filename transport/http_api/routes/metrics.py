"""`GET /metrics`: what Prometheus scrapes, for operators. `--metrics-port` is a port for it without keys."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sessions.model.authorization import demand_operator
from transport.http_api.context import principal_of
from transport.openai.response_models import ERRORS
from transport.ops.prometheus import MetricsExposition


def router(exposition: MetricsExposition) -> APIRouter:
    routes = APIRouter(tags=["operations"])

    @routes.get("/metrics", response_class=Response, responses=ERRORS)
    async def metrics(request: Request) -> Response:
        """Returns the metrics of this process as text. Needs an operator's key."""
        demand_operator(principal_of(request))
        body, media_type = await exposition.text()
        return Response(body, media_type=media_type, headers={"cache-control": "no-store"})

    return routes
