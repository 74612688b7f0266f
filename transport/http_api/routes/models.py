"""`/v1/models`: what is served here, with context window, capabilities and price.

Who sends `anthropic-version` gets Anthropic's shape."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from sessions.retrieval.embedding import EmbeddingModel
from transport.http.json_response import JsonResponse
from transport.http_api.context import gateway_of, principal_of
from transport.http_api.strict_json import StrictRoute
from transport.model_catalog import ModelCard, card
from transport.openai.response_models import ERRORS
from transport.openai.unknown_parameters import leave_out


class Capabilities(BaseModel):
    tools: bool
    structured_output: bool
    logprobs: bool
    foldings: list[str]
    reasoning: bool  # its answers show reasoning apart from the text
    embedding: bool  # it makes vectors of texts, and cannot chat


class PriceObject(BaseModel):
    """A model's prices per million tokens by the price list in force now; null if this process has none for it."""

    input: float
    cached_input: float
    output: float
    currency: str
    price_version: str


class PoolObject(BaseModel):
    """A model's entry in the models file; null without such a file. `models`: the models that an alias stands for."""

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


VERSION_HEADER: Final = "anthropic-version"

Unhonoured = Annotated[str | None, Query(include_in_schema=False)]

routes = APIRouter(tags=["models"], route_class=StrictRoute)


@routes.get("/v1/models", response_model=ModelList, responses=ERRORS)
async def models(
    request: Request, limit: Unhonoured = None, after_id: Unhonoured = None, before_id: Unhonoured = None
) -> ModelList | JsonResponse:
    """Lists the models, and the aliases of the models file, that the caller's tenant may use; behind them the embedding
    models."""
    pages = {"limit": limit, "after_id": after_id, "before_id": before_id}  # Anthropic's; the list is always whole
    leave_out(request, [name for name, value in pages.items() if value is not None])
    principal, gateway = principal_of(request, "read"), gateway_of(request)
    pools = gateway.pools()
    named = [
        (each, name)
        for each in gateway.models()
        for name in each.names
        if (name == each.id or name not in gateway.unlisted) and pools.visible(principal.tenant, name)
    ]
    if VERSION_HEADER in request.headers:
        shown = [_anthropic_object(each, name) for each, name in named]
        ends = (
            {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
        )
        return JsonResponse({"data": shown, "has_more": False, **ends})
    listed = [_object(request, each, name) for each, name in named]
    embedding = [_embedding_object(request, embedder) for embedder in _embedding_models(request)]
    return ModelList(object="list", data=[*listed, *embedding])


@routes.get("/v1/models/{model:path}", response_model=ModelObject, responses=ERRORS)
async def model(model: str, request: Request) -> ModelObject | JsonResponse:
    """Returns one model or alias, or an embedding model."""
    principal, gateway = principal_of(request, "read"), gateway_of(request)
    if VERSION_HEADER not in request.headers:
        for embedder in _embedding_models(request):
            if embedder.name == model:
                return _embedding_object(request, embedder)
    gateway.pools().choice(principal.tenant, model)
    model_card = card(gateway.models, model)
    if VERSION_HEADER in request.headers:
        return JsonResponse(_anthropic_object(model_card, model))
    return _object(request, model_card, model)


def _anthropic_object(model: ModelCard, name: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "id": name, "display_name": name, "created_at": created}


def _object(request: Request, model: ModelCard, name: str) -> ModelObject:
    gateway = gateway_of(request)
    price = gateway.prices.public(model.id, gateway.now_ms())
    return ModelObject.model_validate({**model.public(name), "price": price})


def _embedding_models(request: Request) -> list[EmbeddingModel]:
    """Returns the embedding models of this process, except those whose names chat models, or models and aliases of the
    models file, have too."""
    gateway = gateway_of(request)
    taken = {name for model in gateway.models() for name in model.names} | set(gateway.pools().file.names)
    models = () if gateway.retrieval is None else gateway.retrieval.embedder.models()
    return [embedder for embedder in models if embedder.name not in taken]


def _embedding_object(request: Request, model: EmbeddingModel) -> ModelObject:
    gateway = gateway_of(request)
    known = ModelCard(id=model.name, context_window=model.tokens_max, sampling=frozenset()).public()
    capabilities = {**known["capabilities"], "embedding": True}
    price = gateway.prices.public(model.name, gateway.now_ms())
    about = {"capabilities": capabilities, "output_modalities": ["embedding"], "price": price}
    return ModelObject.model_validate({**known, **about})
