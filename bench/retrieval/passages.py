"""Vector stores at size: recall of the nearest against all vectors compared exactly, how long a query takes, how fast
chunks are put, whose passages are found, whether each citation stands where it says, and what is found of a document
that was deleted.

    .venv/bin/python -m bench.retrieval.passages --chunks 100000 --queries 300 --tenants 50 --foreign 2000

The `--foreign` queries are searches of the other tenants' stores, by meaning and by words, with vectors that were made
before; any passage of another tenant counts, and skipped stages are counted apart. Behind them a document with words of
its own is put, found and deleted.

`--store sqlite` (a file in a temporary folder) or `postgres` (from its wheel, with pgvector). Vectors are made: a few
hundred sentences are embedded by the packaged model, and each chunk's vector is near one of them, so that neighbours
are as close as those of real texts; queries are further sentences with their real embedding, whose time counts.
Chunks are spread over the tenants but for one store, which has most of them and is the one that is queried.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy

from bench.support import Option, report, run_bench, spread
from inference import open_embedder
from persistence.codec import PlainCodec
from persistence.passages.databases import PassageDatabase, SqlitePassages
from persistence.passages.index import SqlPassageIndex
from persistence.passages.postgres import PostgresPassages
from sessions.metrics import Metrics
from sessions.model.types import TenantId, UnixMs
from sessions.retrieval.embedding import Embedder, EmbeddingInput, Embeddings
from sessions.retrieval.search import Deadlines, PassageSearch
from sessions.retrieval.vector_stores import DocumentId, NewChunk, StoreFile, StoreId, VectorStore
from testbed.postgres_server import PostgresServer

SUBJECTS = (
    "The river",
    "A bank",
    "My neighbour",
    "The old engine",
    "Parliament",
    "The recipe",
    "A violin",
    "The coast",
)
VERBS = ("floods", "raises", "repairs", "remembers", "refuses", "measures", "borrows", "paints")
OBJECTS = (
    "the bridge",
    "its rates",
    "a wooden door",
    "the treaty",
    "seven loaves",
    "the score",
    "winter wheat",
    "salt",
)
LATER = UnixMs(2**40)
PATIENT = Deadlines(embedding=600.0, index=600.0)  # what is late counts by its time


def sentences(count: int, rng: random.Random) -> list[str]:
    return [
        f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)} in {1500 + rng.randrange(500)},"
        f" and {rng.choice(SUBJECTS).lower()} {rng.choice(VERBS)} {rng.choice(OBJECTS)}."
        for _ in range(count)
    ]


async def embedded(embedder: Embedder, texts: list[str]) -> Any:
    vectors: list[bytes] = []
    for at in range(0, len(texts), 64):
        made = await embedder.embed(TenantId("bench"), "all-minilm-l6-v2", texts[at : at + 64])
        vectors += made.vectors
    return numpy.frombuffer(b"".join(vectors), "<f4").reshape(len(texts), -1)


def near(base: Any, count: int, rng: numpy.random.Generator) -> Any:
    """Vectors of length 1 around the given ones, with a cosine to them of 0.7 to 0.95."""
    chosen = base[rng.integers(0, len(base), count)]
    noise = rng.normal(size=chosen.shape).astype("f4")
    noise /= numpy.linalg.norm(noise, axis=1, keepdims=True)
    made = chosen + noise * rng.uniform(0.33, 1.0, (count, 1)).astype("f4")
    return (made / numpy.linalg.norm(made, axis=1, keepdims=True)).astype("<f4")


async def filled(index: SqlPassageIndex, store: VectorStore, vectors: Any, text: str) -> float:
    """Seconds that putting the chunks took."""
    await index.create(store)
    name = DocumentId(f"f-{store.tenant}")
    file = StoreFile(id=name, store=store.id, tenant=store.tenant, filename="f", created_at=UnixMs(1))
    await index.add_file(file, text)
    begun_at = time.perf_counter()
    for at in range(0, len(vectors), 256):
        chunks = []
        for number, vector in enumerate(vectors[at : at + 256], at):
            start = 60 * number % (len(text) - 60)
            chunks.append(NewChunk(text[start : start + 60], start, start + 60, vector.tobytes()))
        await index.put_chunks(file, chunks, last=at + 256 >= len(vectors), until=LATER)
        file = msgspec.structs.replace(file, claimed_until=LATER)
    return time.perf_counter() - begun_at


class MadeVectors:
    """What a search needs of an embedder; it knows the vectors of its texts beforehand."""

    def __init__(self, vectors: dict[str, bytes]) -> None:
        self._vectors = vectors

    async def embed(
        self, tenant: TenantId, model: str, inputs: Sequence[EmbeddingInput], *, dimensions: int | None = None
    ) -> Embeddings:
        return Embeddings(tuple(self._vectors[str(text)] for text in inputs), len(inputs))


async def foreign_passages(
    index: SqlPassageIndex,
    rng: random.Random,
    stores: list[VectorStore],
    texts: list[str],
    queries: Any,
    count: int,
    text: str,
) -> tuple[int, int]:
    """Searches the stores of all tenants but the first; returns how many passages of other tenants were found, and how
    many stages of the searches were skipped. Every document of these stores begins with its tenant's name, and no chunk
    of it is longer than its text."""
    vectors = {query: vector.tobytes() for query, vector in zip(texts, queries, strict=True)}
    search, foreign = PassageSearch(index, cast(Embedder, MadeVectors(vectors)), Metrics()), 0
    skipped = 0
    for _ in range(count):
        store = rng.choice(stores[1:])
        outcome = await search.search([store], rng.choice(texts), limit=10, deadlines=PATIENT)
        skipped += len(outcome.reasons)
        foreign += sum(
            passage.file != f"f-{store.tenant}" or passage.text not in f"{store.tenant} {text}"
            for passage in outcome.passages
        )
        theirs = await index.passages(stores[0].tenant, stores[0].id, [each.number for each in outcome.passages])
        foreign += len(theirs)
    return foreign, skipped


async def deleted_hits(index: SqlPassageIndex, store: VectorStore, vector: bytes, count: int) -> tuple[int, int]:
    """Puts a document with a word of its own and deletes it; returns how many of `count` searches found it before, and
    how many after."""
    file = StoreFile(id=DocumentId("gone"), store=store.id, tenant=store.tenant, filename="g", created_at=UnixMs(2))
    await index.add_file(file, "zymurgy")
    await index.put_chunks(file, [NewChunk("zymurgy", 0, 7, vector)], last=True, until=LATER)
    search = PassageSearch(index, cast(Embedder, MadeVectors({"zymurgy": vector})), Metrics())

    async def hits() -> int:
        outcomes = [await search.search([store], "zymurgy", limit=10, deadlines=PATIENT) for _ in range(count)]
        return sum(any(passage.file == file.id for passage in outcome.passages) for outcome in outcomes)

    before = await hits()
    await index.remove_file(store.tenant, store.id, file.id)
    return before, await hits()


async def measure(options: argparse.Namespace, database: PassageDatabase, embedder: Embedder) -> dict[str, Any]:
    rng, numbers = random.Random(options.seed), numpy.random.default_rng(options.seed)
    index = SqlPassageIndex(database, PlainCodec())
    base = await embedded(embedder, sentences(400, rng))
    texts = sentences(options.queries, rng)
    text = " ".join(sentences(3_000, rng))
    stores = [
        VectorStore(
            id=StoreId("vs"),
            tenant=TenantId(f"t{number}"),
            user=None,
            model="all-minilm-l6-v2",
            dimensions=384,
            created_at=UnixMs(1),
        )
        for number in range(options.tenants)
    ]
    vectors = near(base, options.chunks, numbers)
    took_s = await filled(index, stores[0], vectors, text)
    for store in stores[1:]:
        await filled(index, store, near(base, 100, numbers), f"{store.tenant} " + text)

    search, took, recalls = PassageSearch(index, embedder, Metrics()), list[float](), list[float]()
    queries = await embedded(embedder, texts)
    for query in texts[:5]:
        await search.search(
            [stores[0]], query, limit=10, deadlines=PATIENT
        )  # the process for questions starts, caches fill
    wrong = cited = 0
    for query, vector in zip(texts, queries, strict=True):
        begun_at = time.perf_counter()
        outcome = await search.search([stores[0]], query, limit=10, deadlines=PATIENT)
        took.append(time.perf_counter() - begun_at)
        cited += len(outcome.passages)
        wrong += sum(text[each.start : each.end] != each.text for each in outcome.passages)
        exact = set(numpy.argsort(-(vectors @ vector))[:10].tolist())
        first = (await index.nearest(stores[0].tenant, stores[0].id, vector.tobytes(), None, 10))[:10]
        recalls.append(len(exact & {number - 1 for number, _ in first}) / 10)  # chunks are numbered from 1
    foreign, skipped = await foreign_passages(index, rng, stores, texts, queries, options.foreign, text)
    before, hits = await deleted_hits(index, stores[1], queries[0].tobytes(), options.queries)
    return {
        "chunks_put_per_s": round(options.chunks / took_s),
        "recall_at_10": round(sum(recalls) / len(recalls), 4),
        **spread("query_ms_{}", took, times=1000),
        "citations": cited,
        "citations_wrong": wrong,
        "queries_of_others": options.foreign,
        "foreign_passages": foreign,
        "stages_skipped": skipped,
        "deleted_found_before": before,
        "deleted_found_after": hits,
    }


async def main(options: argparse.Namespace) -> None:
    async with open_embedder(SimpleNamespace(embeddings=""), Metrics(), {}) as embedder:
        with ExitStack() as stack:
            database: PassageDatabase
            if options.store == "sqlite":
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                database = SqlitePassages(Path(folder) / "passages.db")
            else:
                server = PostgresServer()
                stack.callback(server.remove)
                server.start()
                database = PostgresPassages(server.dsn)
            await database.open()
            try:
                figures = await measure(options, database, embedder)
            finally:
                await database.close()
    report("passages", {"store": options.store, "chunks": options.chunks, **figures})


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        store=Option("sqlite", "which index", ("sqlite", "postgres")),
        chunks=100_000,
        queries=300,
        tenants=50,
        foreign=2_000,
        seed=1,
    )
