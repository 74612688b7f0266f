"""`/v1/models`: what is served here, with context window, capabilities and price."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from transport.http.context import gateway_of, principal_of
from transport.openai.model_catalog import card, listed
from transport.openai.response_models import ERRORS


class Capabilities(BaseModel):
    tools: bool
    structured_output: bool
    logprobs: bool


class ModelObject(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_window: int | None
    capabilities: Capabilities
    price: dict[str, float] | None
    notice: str | None


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelObject]


routes = APIRouter(tags=["models"])


@routes.get("/v1/models", responses=ERRORS)
async def models(request: Request) -> ModelList:
    """The models that are served here."""
    principal_of(request, "read")
    rows = listed(gateway_of(request).models)
    return ModelList(object="list", data=[ModelObject.model_validate(each) for each in rows])


@routes.get("/v1/models/{model:path}", responses=ERRORS)
async def model(model: str, request: Request) -> ModelObject:
    """One of them."""
    principal_of(request, "read")
    return ModelObject.model_validate(card(gateway_of(request).models, model).public(model))
