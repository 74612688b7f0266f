"""The port `Embedder`: all embedding models of a process by name, each asked in its own way, within the limits of one
request.

A change of the file takes hold for the next request; those under way end as they began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from inference.embedding.pool import PackagedEmbedder
from sessions.model.errors import BadInput, NotFound, TooLarge, Unavailable
from sessions.model.types import TenantId
from sessions.public_addresses import AddressRules
from sessions.retrieval.embedding import (
    CHARACTERS_MAX,
    DOCUMENTS_MAX,
    INPUTS_MAX,
    EmbeddingInput,
    EmbeddingModel,
    Embeddings,
    Ranking,
    TokenSpans,
)

if TYPE_CHECKING:  # the HTTP client takes long to load: only where a file names a server
    from inference.embedding.endpoint import EndpointEmbedder
    from inference.embedding.models_file import EmbeddingFile
    from inference.tools.outbound import ToolHttpClient


class EmbeddingCatalog:
    """The embedding models that clients can name. `packaged` is None where its packages are not installed."""

    def __init__(
        self,
        packaged: PackagedEmbedder | None,
        client: ToolHttpClient | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._client = client
        self._environment = environment or {}
        self._packaged = {packaged.model.name: packaged} if packaged is not None else {}
        self._embedders: dict[str, PackagedEmbedder | EndpointEmbedder] = {**self._packaged}

    def put(self, file: EmbeddingFile) -> None:
        """Replaces the models by those of another version of the file."""
        from inference.embedding.endpoint import EndpointEmbedder

        client, rules = self._client, AddressRules(file.networks)
        assert client is not None
        endpoints = {
            name: EndpointEmbedder(name, given, client, rules, self._environment) for name, given in file.models.items()
        }
        self._embedders = {**endpoints, **(self._packaged if file.packaged else {})}

    def models(self) -> Sequence[EmbeddingModel]:
        return [embedder.model for embedder in self._embedders.values()]

    def model(self, name: str | None) -> EmbeddingModel:
        return self._embedder(name).model

    async def embed(
        self, tenant: TenantId, model: str, inputs: Sequence[EmbeddingInput], *, dimensions: int | None = None
    ) -> Embeddings:
        embedder = self._embedder(model)
        if not inputs or any(not input_ for input_ in inputs):
            raise BadInput("invalid_request", "'input' has an empty text, or none at all.", param="input")
        if len(inputs) > INPUTS_MAX:
            raise TooLarge("content_too_large", f"A request has at most {INPUTS_MAX} inputs.", param="input")
        _check_size(inputs, "input")
        about = embedder.model
        if dimensions not in (None, about.dimensions) and not about.resizes:
            message = f"{about.name} makes vectors of {about.dimensions} dimensions and no others."
            raise BadInput("unsupported_parameter", message, param="dimensions")
        return await embedder.embed(tenant, inputs, dimensions)

    async def rank(self, tenant: TenantId, model: str, query: str, documents: Sequence[str]) -> Ranking:
        embedder = self._embedder(model)
        if not query or not documents:
            raise BadInput("invalid_request", "'query' and 'documents' must not be empty.", param="query")
        if len(documents) > DOCUMENTS_MAX:
            raise TooLarge("content_too_large", f"A request has at most {DOCUMENTS_MAX} documents.", param="documents")
        _check_size((query, *documents), "documents")
        return await embedder.rank(tenant, query, documents)

    async def decode(self, tenant: TenantId, model: str, inputs: Sequence[EmbeddingInput]) -> Sequence[str]:
        return await self._embedder(model).decode(tenant, inputs)

    async def split(self, tenant: TenantId, model: str, text: str) -> TokenSpans:
        return await self._embedder(model).split(tenant, text)

    def _embedder(self, name: str | None) -> PackagedEmbedder | EndpointEmbedder:
        embedders = self._embedders
        if not embedders:
            raise Unavailable(
                "no_embeddings", "This server has no embedding model: see docs/retrieval.md.", retryable=False
            )
        found = embedders.get(next(iter(embedders)) if name is None else name)
        if found is None:
            names = ", ".join(embedders)
            raise NotFound("model_not_found", f"There is no such embedding model; there are: {names}.", param="model")
        return found


def _check_size(texts: Sequence[EmbeddingInput], param: str) -> None:
    if sum(len(text) if isinstance(text, str) else 4 * len(text) for text in texts) > CHARACTERS_MAX:
        raise TooLarge(
            "content_too_large", f"A request has at most {CHARACTERS_MAX} characters: send it in parts.", param=param
        )
