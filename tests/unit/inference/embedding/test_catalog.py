"""Models by name, and the bounds of one request."""

from __future__ import annotations

from typing import Any, cast

import pytest

from inference.embedding.catalog import EmbeddingCatalog
from inference.embedding.models_file import EmbeddingFile, EndpointModel
from inference.embedding.packaged import MODEL
from inference.embedding.pool import PackagedEmbedder
from inference.tools.outbound import ToolHttpClient
from sessions.model.errors import BadInput, TooLarge
from sessions.model.types import TenantId
from sessions.retrieval.embedding import CHARACTERS_MAX, DOCUMENTS_MAX, INPUTS_MAX
from tests.support.engines.made_up_embedder import MadeUpEmbedder

ACME = TenantId("acme")
OTHER = EndpointModel(url="https://a.example/v1", dimensions=8)


class Packaged:
    """In place of the processes."""

    model = MODEL

    def __init__(self) -> None:
        self.made = MadeUpEmbedder()

    async def embed(self, tenant: TenantId, inputs: Any, dimensions: int | None) -> Any:
        return await self.made.embed(tenant, "made-up", inputs)

    async def rank(self, tenant: TenantId, query: str, documents: Any) -> Any:
        return await self.made.rank(tenant, "made-up", query, documents)

    async def split(self, tenant: TenantId, text: str) -> Any:
        return await self.made.split(tenant, "made-up", text)

    async def decode(self, tenant: TenantId, inputs: Any) -> Any:
        return await self.made.decode(tenant, "made-up", inputs)


def catalog() -> EmbeddingCatalog:
    return EmbeddingCatalog(cast(PackagedEmbedder, Packaged()), cast(ToolHttpClient, object()))


async def test_each_is_asked_in_its_own_way() -> None:
    made = catalog()
    made.put(EmbeddingFile(models={"other": OTHER}))
    assert len((await made.embed(ACME, MODEL.name, ["a"])).vectors) == 1
    assert (await made.rank(ACME, MODEL.name, "a", ["a", "b"])).scores == (1, 0)
    assert (await made.split(ACME, MODEL.name, "a b")).starts == (0, 2)
    assert (await made.split(ACME, "other", "abcdefgh")).starts == (0, 4)
    assert await made.decode(ACME, MODEL.name, [(1, 2)]) == ["1 2"] and await made.decode(ACME, "other", ["x"]) == ["x"]
    with pytest.raises(BadInput, match="mean nothing here"):
        await made.decode(ACME, "other", [(1, 2)])
    with pytest.raises(BadInput, match="ranks no documents"):
        await made.rank(ACME, "other", "a", ["b"])


async def test_bounds_of_a_request() -> None:
    made, name = catalog(), MODEL.name
    for inputs, error in (
        ([], BadInput),
        ([""], BadInput),
        (["x"] * (INPUTS_MAX + 1), TooLarge),
        (["x" * (CHARACTERS_MAX + 1)], TooLarge),
        ([(1,) * CHARACTERS_MAX], TooLarge),
    ):
        with pytest.raises(error):
            await made.embed(ACME, name, inputs)
    for query, documents, refused in (
        ("", ["a"], BadInput),
        ("q", [], BadInput),
        ("q", ["a"] * (DOCUMENTS_MAX + 1), TooLarge),
        ("q", ["a" * CHARACTERS_MAX], TooLarge),
    ):
        with pytest.raises(refused):
            await made.rank(ACME, name, query, documents)
