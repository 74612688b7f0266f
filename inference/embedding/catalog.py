"""The port `Embedder`: all embedding models of a process by name, each asked in its own way, within the limits of one
request.

A change of the file takes hold for the next request; those under way end as they began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from inference.embedding.models_file import EmbeddingFile
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
    from inference.tools.outbound import ToolHttpClient


class EmbeddingCatalog:
    """The embedding models that clients can name. `packaged` is None where its packages are not installed."""

    def __init__(
        self,
        packaged: PackagedEmbedder | None,
        client: ToolHttpClient | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._packaged = packaged
        self._client = client
        self._environment = environment or {}
        self._shown = packaged is not None
        self._endpoints: dict[str, EndpointEmbedder] = {}

    def put(self, file: EmbeddingFile) -> None:
        """Replaces the models by those of another version of the file."""
        from inference.embedding.endpoint import EndpointEmbedder

        assert self._client is not None or not file.models
        rules = AddressRules(file.networks)
        self._shown = self._packaged is not None and file.packaged
        self._endpoints = {
            name: EndpointEmbedder(name, given, self._client, rules, self._environment)
            for name, given in file.models.items()
            if self._client is not None
        }

    def models(self) -> Sequence[EmbeddingModel]:
        own = [self._packaged.model] if self._packaged is not None and self._shown else []
        return [*(embedder.model for embedder in self._endpoints.values()), *own]

    def model(self, name: str | None) -> EmbeddingModel:
        models = self.models()
        if not models:
            raise Unavailable(
                "no_embeddings", "This server has no embedding model: see docs/retrieval.md.", retryable=False
            )
        found = models[0] if name is None else next((model for model in models if model.name == name), None)
        if found is None:
            names = ", ".join(model.name for model in models)
            raise NotFound("model_not_found", f"There is no such embedding model; there are: {names}.", param="model")
        return found

    async def embed(
        self, tenant: TenantId, model: str, inputs: Sequence[EmbeddingInput], *, dimensions: int | None = None
    ) -> Embeddings:
        name = self.model(model).name
        if not inputs or any(not input_ for input_ in inputs):
            raise BadInput("invalid_request", "'input' has an empty text, or none at all.", param="input")
        if len(inputs) > INPUTS_MAX:
            raise TooLarge("content_too_large", f"A request has at most {INPUTS_MAX} inputs.", param="input")
        _check_size(inputs, "input")
        endpoint = self._endpoints.get(name)
        if endpoint is not None:
            return await endpoint.embed(inputs, dimensions)
        return await self._own().embed(tenant, inputs, dimensions)

    async def rank(self, tenant: TenantId, model: str, query: str, documents: Sequence[str]) -> Ranking:
        about = self.model(model)
        if not about.ranks:
            raise BadInput("unsupported_parameter", f"{about.name} ranks no documents.", param="model")
        if not query or not documents:
            raise BadInput("invalid_request", "'query' and 'documents' must not be empty.", param="query")
        if len(documents) > DOCUMENTS_MAX:
            raise TooLarge("content_too_large", f"A request has at most {DOCUMENTS_MAX} documents.", param="documents")
        _check_size((query, *documents), "documents")
        endpoint = self._endpoints.get(about.name)
        if endpoint is not None:
            return await endpoint.rank(query, documents)
        return await self._own().rank(tenant, query, documents)

    async def decode(self, tenant: TenantId, model: str, inputs: Sequence[EmbeddingInput]) -> Sequence[str]:
        name = self.model(model).name
        if name not in self._endpoints:
            return await self._own().decode(tenant, inputs)
        texts = [input_ for input_ in inputs if isinstance(input_, str)]
        if len(texts) < len(inputs):
            raise BadInput("invalid_request", f"{name} is sent texts: its token ids mean nothing here.", param="input")
        return texts

    async def split(self, tenant: TenantId, model: str, text: str) -> TokenSpans:
        endpoint = self._endpoints.get(self.model(model).name)
        if endpoint is not None:
            return endpoint.split(text)
        return await self._own().split(tenant, text)

    def _own(self) -> PackagedEmbedder:
        assert self._packaged is not None
        return self._packaged


def _check_size(texts: Sequence[EmbeddingInput], param: str) -> None:
    if sum(len(text) if isinstance(text, str) else 4 * len(text) for text in texts) > CHARACTERS_MAX:
        raise TooLarge(
            "content_too_large", f"A request has at most {CHARACTERS_MAX} characters: send it in parts.", param=param
        )
