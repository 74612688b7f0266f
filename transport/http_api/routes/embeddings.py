"""`/v1/embeddings` and `/v1/rerank`: vectors of texts, and documents in the order in which they answer a query."""

from __future__ import annotations

import base64
from array import array
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from sessions.retrieval.embedding import EmbeddingInput
from transport.http_api.context import gateway_of, principal_of
from transport.http_api.strict_json import StrictRoute
from transport.openai.response_models import answers
from transport.openai.unknown_parameters import leave_out
from transport.retrieval.embedding_models import EmbeddingList, EmbeddingsRequest, Reranked, RerankRequest
from transport.retrieval.metering import embedder_of, record_use, screen

routes = APIRouter(tags=["retrieval"], route_class=StrictRoute)


@routes.post("/v1/embeddings", response_model=None, responses=answers(EmbeddingList))
async def embeddings(request: Request, body: EmbeddingsRequest) -> Response:
    """Computes a vector of length 1 for each input. Long requests are cut into batches, and tenants take turns."""
    gateway, principal = gateway_of(request), principal_of(request, "chat")
    leave_out(request, [] if body.user is None else ["user"])
    embedder = embedder_of(gateway)
    model, inputs = embedder.model(body.model).name, _inputs(body)
    await screen(gateway, principal, await embedder.decode(principal.tenant, model, inputs), param="input")
    made = await embedder.embed(principal.tenant, model, inputs, dimensions=body.dimensions)
    await record_use(gateway, principal, model, made.tokens)
    is_text = body.encoding_format == "base64"
    shown = [base64.b64encode(each).decode() if is_text else array("f", each).tolist() for each in made.vectors]
    data = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(shown)]
    return _json({"object": "list", "data": data, "model": model, "usage": _usage(made.tokens)})


@routes.post("/v1/rerank", response_model=None, responses=answers(Reranked))
@routes.post("/v2/rerank", response_model=None, include_in_schema=False)
@routes.post("/rerank", response_model=None, include_in_schema=False)
async def rerank(request: Request, body: RerankRequest) -> Response:
    """Sorts documents by how well they answer a query, best first. A document's score is the mean, over the words of
    the query, of how near in meaning its nearest word is."""
    gateway, principal = gateway_of(request), principal_of(request, "chat")
    embedder = embedder_of(gateway)
    model = embedder.model(body.model).name
    documents = [each if isinstance(each, str) else each.text for each in body.documents]
    await screen(gateway, principal, (body.query, *documents), param="documents")
    ranked = await embedder.rank(principal.tenant, model, body.query, documents)
    await record_use(gateway, principal, model, ranked.tokens)
    order = sorted(range(len(documents)), key=lambda index: (-ranked.scores[index], index))[: body.top_n]
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": ranked.scores[index]} for index in order]
    if body.return_documents:
        for result in results:
            result["document"] = {"text": documents[result["index"]]}
    shown = {"id": f"rerank_{gateway.new_id()}", "object": "list", "model": model, "results": results}
    return _json({**shown, "usage": _usage(ranked.tokens)})


def _inputs(body: EmbeddingsRequest) -> tuple[EmbeddingInput, ...]:
    given = body.input
    if isinstance(given, str):
        return (given,)
    if isinstance(given[0], int):
        return (tuple(each for each in given if isinstance(each, int)),)
    return tuple(tuple(each) if isinstance(each, list) else each for each in given if not isinstance(each, int))


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _json(body: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
