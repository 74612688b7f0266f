"""Embeddings: what a model that turns texts into vectors is told, what it answers, and the port in front of it.

`inference.embedding` implements the port: a model that ships in a package, in processes of its own, and any server that
speaks OpenAI's API. A vector is 32-bit floats, little endian, of length 1, so that a dot product is the cosine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from sessions.model.types import TenantId

INPUTS_MAX: Final = 2_048  # of one request, as OpenAI has it
CHARACTERS_MAX: Final = 400_000  # of one request, all inputs together
DOCUMENTS_MAX: Final = 256  # of one re-ranking

EmbeddingInput = str | tuple[int, ...]
"""A text, or token ids of the model's own tokenizer."""


class EmbeddingModel(msgspec.Struct, frozen=True, kw_only=True):
    """An embedding model as its users know it."""

    name: str
    dimensions: int
    tokens_max: int  # of one input, at most
    ranks: bool = False  # whether it has a vector for each token, and so can score documents for a query
    resizes: bool = False  # whether it makes shorter vectors on request


class Embeddings(msgspec.Struct, frozen=True):
    """One vector for each input, and the number of tokens of all inputs together."""

    vectors: tuple[bytes, ...]
    tokens: int


class Ranking(msgspec.Struct, frozen=True):
    """One score for each document, in the given order; 1: every token of the query stands in it as it is."""

    scores: tuple[float, ...]
    tokens: int


class TokenSpans(msgspec.Struct, frozen=True):
    """The begin and end of each token of a text, in characters; spaces that are no token belong to none."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]


class Embedder(Protocol):
    """The embedding models of a process, by name; fair between tenants, bounded, never in the way of answers.

    Errors of every call: NotFound for an unknown model, TooLarge and BadInput for inputs that it cannot
    take, Overloaded where too many wait, Unavailable where the model is away.
    """

    def models(self) -> Sequence[EmbeddingModel]:
        """Returns all models; the first one is the default."""
        ...

    def model(self, name: str | None) -> EmbeddingModel: ...

    async def embed(
        self, tenant: TenantId, model: str, inputs: Sequence[EmbeddingInput], *, dimensions: int | None = None
    ) -> Embeddings: ...

    async def rank(self, tenant: TenantId, model: str, query: str, documents: Sequence[str]) -> Ranking: ...

    async def decode(self, tenant: TenantId, model: str, inputs: Sequence[EmbeddingInput]) -> Sequence[str]:
        """Returns the texts of the inputs, as filters judge them. Raises BadInput if token ids cannot be read here."""
        ...

    async def split(self, tenant: TenantId, model: str, text: str) -> TokenSpans:
        """Returns the tokens of a text. For a model that keeps its tokenizer to itself they are estimated, never too
        few."""
        ...
