"""Opens retrieval for a process: embedding models, the index that goes with its store, and what reads documents in."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from actors.hosting.services import Inference
from inference import open_embedder
from persistence import OpenableStores
from persistence.passages import open_passages
from sessions.backoff import Backoff
from sessions.billing.prices import PriceBook
from sessions.clock import Clock
from sessions.limits import LimitsNow
from sessions.metrics import Metrics
from sessions.model.types import TenantId
from sessions.ports import ServerTools
from sessions.retrieval.deleted_uploads import sweep_deleted_uploads
from sessions.retrieval.file_search import FileSearch
from sessions.retrieval.reading_in import FIRST_PAUSE_S, PAUSE_MAX_S, DocumentReader
from sessions.retrieval.scoped_search import ScopedSearch
from sessions.retrieval.search import PassageSearch
from sessions.retrieval.services import Retrieval, VectorStores
from transport.retrieval.metering import recorder


class RetrievalSettings(Protocol):
    @property
    def embeddings(self) -> str: ...
    @property
    def vector_stores(self) -> str: ...
    @property
    def journal(self) -> str: ...
    @property
    def data(self) -> str: ...


class LimitsHolder(Protocol):
    @property
    def now(self) -> LimitsNow: ...


def equipped(inference: Inference, retrieval: Retrieval, tools: ServerTools | None) -> Inference:
    """Returns the services with the server's tools, and with what searches documents if there are vector stores."""
    stores = retrieval.vector_stores
    if stores is None:
        return replace(inference, tools=tools)
    knowledge = ScopedSearch(stores.passages, stores.search)
    return replace(inference, tools=FileSearch(stores.passages, stores.search, tools), knowledge=knowledge)


@asynccontextmanager
async def open_retrieval(
    settings: RetrievalSettings,
    stores: OpenableStores,
    measures: Metrics,
    environment: Mapping[str, str],
    clock: Clock,
    prices: PriceBook,
    limited: LimitsHolder | None,
    *,
    reads: bool = True,
) -> AsyncIterator[Retrieval]:
    """`reads`: this process reads documents in. Raises BadInput for a file of models that is wrong."""

    def weight(tenant: TenantId) -> float:
        return 1.0 if limited is None else limited.now().of(tenant).weight

    wanted, folder = settings.vector_stores == "auto", Path(settings.data)
    async with (
        open_embedder(settings, measures, environment, weight) as embedder,
        open_passages(settings.journal if wanted else "off", folder, stores.codec) as index,
    ):
        if index is None:
            yield Retrieval(embedder, None)
            return
        backoff = Backoff(FIRST_PAUSE_S, PAUSE_MAX_S, random.Random())
        record = recorder(stores.store.usage, prices, clock)
        reader = DocumentReader(index, embedder, clock.now_ms, measures, backoff, record)
        made = VectorStores(index, PassageSearch(index, embedder, measures), reader)
        works = [reader.run(), sweep_deleted_uploads(index, stores.store.files, clock.now_ms)] if reads else []
        tasks = [asyncio.create_task(work) for work in works]
        try:
            yield Retrieval(embedder, made)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
