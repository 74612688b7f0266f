"""Embeddings: the input and output of models that turn texts into vectors, and the port in front of them.

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
    """An embedding model, as clients see it."""

    name: str
    dimensions: int
    tokens_max: int  # of one input, at most
    resizes: bool = False  # whether it makes shorter vectors on request


class Embeddings(msgspec.Struct, frozen=True):
    """One vector for each input, and the number of tokens of all inputs together."""

    vectors: tuple[bytes, ...]
    tokens: int


class Ranking(msgspec.Struct, frozen=True):
    """One score for each document, in the given order; 1 means that the document has every token of the query
    literally. `tokens` is how many tokens were processed."""

    scores: tuple[float, ...]
    tokens: int


class TokenSpans(msgspec.Struct, frozen=True):
    """The begin and end of each token of a text, in characters. Spaces that are not part of a token are in no span."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]


class Embedder(Protocol):
    """The embedding models of a process, by name; fair between tenants, bounded, never in the way of answers.

    Errors of every call: NotFound for an unknown model, TooLarge and BadInput for inputs that it cannot take,
    Overloaded if too many calls wait, Unavailable if the model is away.
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
        """Returns the inputs as texts, for filters to judge. Raises BadInput if the inputs are token ids that cannot be
        decoded here."""
        ...

    async def split(self, tenant: TenantId, model: str, text: str) -> TokenSpans:
        """Returns the tokens of a text. If the model's tokenizer is not known here they are estimated, and never too
        few."""
        ...
