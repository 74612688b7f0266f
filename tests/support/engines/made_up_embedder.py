"""An embedder without a model: words are spread over a few dimensions by their hash, so that texts that share words are
near each other. Quick, deterministic, and what it was asked is kept."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from persistence.codec import PlainCodec
from persistence.passages.databases import SqlitePassages
from persistence.passages.index import SqlPassageIndex
from sessions.backoff import Backoff
from sessions.metrics import Metrics
from sessions.model.errors import NotFound, Unavailable
from sessions.model.types import TenantId, UnixMs
from sessions.retrieval.embedding import EmbeddingInput, EmbeddingModel, Embeddings, Ranking, TokenSpans
from sessions.retrieval.reading_in import DocumentReader
from sessions.retrieval.search import PassageSearch
from sessions.retrieval.services import Retrieval, VectorStores
from sessions.retrieval.vector_stores import DocumentId, StoreFile, StoreId, VectorStore

WORD = re.compile(r"\w+|[^\w\s]")
MADE_UP = EmbeddingModel(name="made-up", dimensions=64, tokens_max=512)


def words(text: str) -> list[str]:
    return [each.lower() for each in WORD.findall(text)]


def vector_of(text: str, dimensions: int = MADE_UP.dimensions) -> bytes:
    values = [1e-3] * dimensions
    for word, count in Counter(words(text)).items():
        digest = hashlib.blake2b(word.encode(), digest_size=16).digest()
        for at in range(0, 16, 4):
            place = int.from_bytes(digest[at : at + 2], "big") % dimensions
            values[place] += count if digest[at + 2] & 1 else -count
    length = math.sqrt(sum(each * each for each in values))
    return array("f", [each / length for each in values]).tobytes()


def made_up_store(store: str = "vs_1", tenant: str = "acme", **more: Any) -> VectorStore:
    about = {"user": None, "model": MADE_UP.name, "dimensions": MADE_UP.dimensions, "created_at": UnixMs(1), **more}
    return VectorStore(id=StoreId(store), tenant=TenantId(tenant), **about)


def made_up_file(name: str, store: VectorStore, **more: Any) -> StoreFile:
    about = {"filename": f"{name}.md", "created_at": UnixMs(1), **more}
    return StoreFile(id=DocumentId(name), store=store.id, tenant=store.tenant, **about)


class MadeUpEmbedder:
    """The port `Embedder`. `away`: it answers nothing; `hold`: it waits."""

    def __init__(self, *models: EmbeddingModel) -> None:
        self._models = models or (MADE_UP,)
        self.embedded: list[tuple[TenantId, EmbeddingInput]] = []
        self.away = False
        self.waiting = 0
        self.hold: asyncio.Event | None = None

    def models(self) -> Sequence[EmbeddingModel]:
        return self._models

    def model(self, name: str | None) -> EmbeddingModel:
        found = next((each for each in self._models if name in (None, each.name)), None)
        if found is None:
            raise NotFound("model_not_found", "There is no such embedding model.", param="model")
        return found

    async def embed(
        self, tenant: TenantId, model: str, inputs: Sequence[EmbeddingInput], *, dimensions: int | None = None
    ) -> Embeddings:
        await self._there()
        texts = await self.decode(tenant, model, inputs)
        self.embedded += [(tenant, each) for each in inputs]
        size = dimensions or self.model(model).dimensions
        return Embeddings(tuple(vector_of(text, size) for text in texts), sum(len(words(text)) for text in texts))

    async def rank(self, tenant: TenantId, model: str, query: str, documents: Sequence[str]) -> Ranking:
        await self._there()
        asked = words(query)
        scores = tuple(sum(word in words(each) for word in asked) / max(len(asked), 1) for each in documents)
        return Ranking(scores, len(asked) + sum(len(words(each)) for each in documents))

    async def decode(self, tenant: TenantId, model: str, inputs: Sequence[EmbeddingInput]) -> Sequence[str]:
        return [each if isinstance(each, str) else " ".join(map(str, each)) for each in inputs]

    async def split(self, tenant: TenantId, model: str, text: str) -> TokenSpans:
        await self._there()
        found = [match.span() for match in WORD.finditer(text)]
        return TokenSpans(tuple(begin for begin, _ in found), tuple(end for _, end in found))

    async def _there(self) -> None:
        if self.hold is not None:
            self.waiting += 1
            await self.hold.wait()
            self.waiting -= 1
        if self.away:
            raise Unavailable("embeddings_unavailable", "The embedding model is away.")


@asynccontextmanager
async def made_up_retrieval(
    now_ms: Callable[[], UnixMs], measures: Metrics | None = None, *, path: Path | None = None, reads: bool = True
) -> AsyncIterator[Retrieval]:
    """Vector stores in memory, or in a file, with a made-up model in front of them; nothing is metered."""
    database = SqlitePassages(path)
    await database.open()
    index, embedder, measures = SqlPassageIndex(database, PlainCodec()), MadeUpEmbedder(), measures or Metrics()

    async def record(store: VectorStore, tokens: int) -> None:
        assert tokens > 0

    reader = DocumentReader(index, embedder, now_ms, measures, Backoff(0.01, 0.1), record)
    reading = asyncio.create_task(reader.run()) if reads else None
    try:
        yield Retrieval(embedder, VectorStores(index, PassageSearch(index, embedder, measures), reader))
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await database.close()
