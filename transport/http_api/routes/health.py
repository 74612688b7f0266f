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


def router(readiness: Readiness) -> APIRouter:
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz", responses=ERRORS)
    async def alive() -> Health:
        """Answers 200 as long as the process runs."""
        return Health(status="ok")

    @routes.get("/health", responses={**ERRORS, 503: {"model": Health}})
    @routes.get("/readyz", responses={**ERRORS, 503: {"model": Health}})
    async def ready(response: Response) -> Health:
        """Answers 200 if the server takes traffic; 503 with the reason while it drains or its engine is restarted."""
        reason = readiness()
        if reason is None:
            return Health(status="ok")
        response.status_code = 503
        return Health(status="unavailable", reason=reason)

    return routes
