"""`/v1/models`: what is served here, with context window, capabilities and price."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from transport.http.context import gateway_of, principal_of
from transport.openai.model_catalog import ModelCard, card
from transport.openai.response_models import ERRORS


class Capabilities(BaseModel):
    tools: bool
    structured_output: bool
    logprobs: bool


class PriceObject(BaseModel):
    """Per million tokens, as the list of prices says now; null where this process has no price for the model."""

    input: float
    cached_input: float
    output: float
    currency: str
    price_version: str


class PoolObject(BaseModel):
    """What the models file says; null without one. `models`: what an alias stands for."""

    replicas: int
    quality: int | None
    size_b: float | None
    vision: bool
    models: list[str]


class ModelObject(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_window: int | None
    capabilities: Capabilities
    input_modalities: list[str]
    output_modalities: list[str]
    price: PriceObject | None
    notice: str | None
    pool: PoolObject | None


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelObject]


routes = APIRouter(tags=["models"])


@routes.get("/v1/models", responses=ERRORS)
async def models(request: Request) -> ModelList:
    """The models that are served here, with the aliases of the models file: those that the caller's tenant may use."""
    principal, gateway = principal_of(request, "read"), gateway_of(request)
    pools = gateway.pools()
    named = ((each, name) for each in gateway.models() for name in each.names if pools.visible(principal.tenant, name))
    return ModelList(object="list", data=[_object(request, each, name) for each, name in named])


@routes.get("/v1/models/{model:path}", responses=ERRORS)
async def model(model: str, request: Request) -> ModelObject:
    """One of them."""
    principal, gateway = principal_of(request, "read"), gateway_of(request)
    gateway.pools().choice(principal.tenant, model)
    return _object(request, card(gateway.models, model), model)


def _object(request: Request, model: ModelCard, name: str) -> ModelObject:
    gateway = gateway_of(request)
    price = gateway.prices.public(model.id, gateway.now_ms())
    return ModelObject.model_validate({**model.public(name), "price": price})
