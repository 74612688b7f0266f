"""Is the process alive, and may it be sent traffic? For load balancers, people and `make serve`."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Response
from pydantic import BaseModel

from transport.openai.response_models import ERRORS

Readiness = Callable[[], str | None]
"""Returns None if the server takes traffic, else the reason why not."""


class Health(BaseModel):
    status: str
    reason: str | None = None
    replication_lag_s: float | None = None


def router(readiness: Readiness, replication_lag_s: Callable[[], float | None]) -> APIRouter:
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz", responses=ERRORS)
    async def alive() -> Health:
        """Answers 200 as long as the process runs."""
        return Health(status="ok")

    @routes.get("/health", response_model_exclude_none=True, responses={**ERRORS, 503: {"model": Health}})
    @routes.get("/readyz", response_model_exclude_none=True, responses={**ERRORS, 503: {"model": Health}})
    async def ready(response: Response) -> Health:
        """Answers 200 if the server takes traffic; 503 with the reason while it drains or its engine is restarted.

        `replication_lag_s`: for how long the copy of an SQLite journal has not had everything (`--replicate`)."""
        reason, lag_s = readiness(), replication_lag_s()
        response.status_code = 200 if reason is None else 503
        status = "ok" if reason is None else "unavailable"
        return Health(status=status, reason=reason, replication_lag_s=None if lag_s is None else round(lag_s, 1))

    return routes
