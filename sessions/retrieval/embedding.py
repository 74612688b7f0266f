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
    """A model as its users know it."""

    name: str
    dimensions: int
    tokens_max: int  # of one input
    ranks: bool = False  # it has a vector for each token, so it can say how well a document answers a query
    resizes: bool = False  # it makes shorter vectors where they are requested


class Embeddings(msgspec.Struct, frozen=True):
    """One vector for each input, and how many tokens they were together."""

    vectors: tuple[bytes, ...]
    tokens: int


class Ranking(msgspec.Struct, frozen=True):
    """One score for each document, in their order: 1 for every token of the query found as it is."""

    scores: tuple[float, ...]
    tokens: int


class TokenSpans(msgspec.Struct, frozen=True):
    """Where the tokens of a text begin and end, in characters; what is no token (spaces) is in none."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]


class Embedder(Protocol):
    """All models of a process, by name; fair between tenants, bounded, never in the way of answers.

    Errors of every call: NotFound for a model that there is none of, TooLarge and BadInput for inputs that it cannot
    take, Overloaded where too many wait, Unavailable where the model is away.
    """

    def models(self) -> Sequence[EmbeddingModel]:
        """The first one is taken where none is named."""
        ...

    def model(self, name: str | None) -> EmbeddingModel: ...

    async def embed(
        self, tenant: TenantId, model: str, inputs: Sequence[EmbeddingInput], *, dimensions: int | None = None
    ) -> Embeddings: ...

    async def rank(self, tenant: TenantId, model: str, query: str, documents: Sequence[str]) -> Ranking: ...

    async def decode(self, tenant: TenantId, model: str, inputs: Sequence[EmbeddingInput]) -> Sequence[str]:
        """The texts of the inputs, as filters judge them. Raises BadInput where token ids cannot be read here."""
        ...

    async def split(self, tenant: TenantId, model: str, text: str) -> TokenSpans:
        """Of a model that keeps its tokenizer to itself it is an estimate, which never says too few."""
        ...
