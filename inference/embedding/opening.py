"""Makes the embedding models of the settings: the packaged one, and those of the file, read again when it changes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final, Protocol

from inference.embedding.catalog import EmbeddingCatalog
from inference.embedding.packaged import installed
from inference.embedding.pool import PackagedEmbedder
from sessions.file_watcher import watched_file
from sessions.metrics import Metrics
from sessions.model.types import TenantId
from sessions.retrieval.embedding import Embedder

BATCH_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class EmbeddingSettings(Protocol):
    @property
    def embeddings(self) -> str: ...


@contextlib.asynccontextmanager
async def open_embedder(
    settings: EmbeddingSettings,
    measures: Metrics,
    environment: Mapping[str, str],
    weight: Callable[[TenantId], float] = lambda tenant: 1.0,
) -> AsyncIterator[Embedder]:
    """Opens the embedding models; no process runs before the first request. Raises BadInput for a file that is wrong
    from the start; one that is wrong later changes nothing."""
    about = "How long a batch of texts took an embedding process."
    batch_s = measures.histogram("embedding_batch_duration_seconds", about, BATCH_S)
    async with contextlib.AsyncExitStack() as stack:
        packaged = None
        if installed():
            packaged = PackagedEmbedder(batch_s, weight=weight)
            stack.push_async_callback(packaged.close)
            lanes = {"quick": packaged.quick, "bulk": packaged.bulk}
            measures.gauge(
                "embedding_batches_waiting",
                "Batches of texts that wait for an embedding process.",
                ("lane",),
                lambda: {(name,): float(lane.queue.num_waiting) for name, lane in lanes.items()},
            )
        if not settings.embeddings:
            yield EmbeddingCatalog(packaged)
            return
        from inference.embedding.models_file import read_embedding_file
        from inference.tools.outbound import ToolHttpClient

        client = await stack.enter_async_context(ToolHttpClient())
        catalog = EmbeddingCatalog(packaged, client, environment)

        watched = watched_file("embeddings", settings.embeddings, read_embedding_file, catalog.put)
        catalog.put(await stack.enter_async_context(watched))
        yield catalog
