"""Searches: fused, re-ranked, and what becomes of them when a part is slow or dead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from sessions.metrics import Metrics
from sessions.model.errors import BadInput, Unavailable
from sessions.model.types import TenantId, UnixMs
from sessions.retrieval.search import Deadlines, PassageSearch, SearchOutcome, SearchTooLate
from sessions.retrieval.services import Retrieval, VectorStores
from sessions.retrieval.vector_stores import DocumentId, Passage, StoreFile, StoreId, VectorStore
from tests.support.engines.made_up_embedder import MADE_UP, MadeUpEmbedder, made_up_retrieval
from tests.support.virtual_time import run

ACME = TenantId("acme")
STORE = VectorStore(
    id=StoreId("vs_1"), tenant=ACME, user=None, model=MADE_UP.name, dimensions=MADE_UP.dimensions, created_at=UnixMs(1)
)
TEXTS = ("The fox jumps over the dog.", "A cat sleeps on the roof.", "Horses run in the field all day.")


@pytest.fixture
async def filled() -> AsyncIterator[Retrieval]:
    async with made_up_retrieval(lambda: UnixMs(1_000_000_000), reads=False) as made:
        stores = made.vector_stores
        assert stores is not None
        await stores.passages.create(STORE)
        for number, text in enumerate(TEXTS):
            name = DocumentId(f"f{number}")
            file = StoreFile(id=name, store=STORE.id, tenant=ACME, filename=name, created_at=UnixMs(number))
            await stores.passages.add_file(file, text)
            assert await stores.reader.read_one()
        yield made


def parts(made: Retrieval) -> tuple[VectorStores, MadeUpEmbedder]:
    assert made.vector_stores is not None and isinstance(made.embedder, MadeUpEmbedder)
    return made.vector_stores, made.embedder


async def test_the_best_passage_is_first_by_every_ranker(filled: Retrieval) -> None:
    stores, _ = parts(filled)
    for ranker in ("auto", "none", "words", "maxsim"):
        found = await stores.search.search([STORE], "cats sleep on a roof", limit=2, ranker=ranker)
        assert found.passages[0].text == TEXTS[1] and not found.skipped and len(found.passages) <= 2
        assert (found.tokens == 0) == (ranker == "words")
    assert (await stores.search.search([], "x")).passages == []


async def test_without_its_embedding_a_query_is_looked_for_by_words_and_the_answer_says_so(filled: Retrieval) -> None:
    stores, embedder = parts(filled)
    embedder.away = True
    found = await stores.search.search([STORE], "cat", ranker="maxsim")
    assert [each.text for each in found.passages] == [TEXTS[1]] and found.skipped == ("embedding", "ranking")
    embedder.away, embedder.hold = False, asyncio.Event()
    late = await stores.search.search([STORE], "cat", deadlines=Deadlines(embedding=0.01))
    assert [each.text for each in late.passages] == [TEXTS[1]] and late.skipped == ("embedding",)


def test_stores_are_searched_at_once_and_a_late_one_takes_no_passages_of_the_rest() -> None:
    class OnlyTheFirstAnswers:
        async def nearest(self, tenant: TenantId, store: StoreId, *_: object) -> list[tuple[int, float]]:
            if store != STORE.id:
                await asyncio.Event().wait()
            return [(1, 0.9)]

        async def matching(self, *_: object) -> list[int]:
            return [1]

        async def passages(self, *_: object) -> list[Passage]:
            return [Passage(number=1, file=DocumentId("f"), filename="f", attributes={}, text="cat", start=0, end=3)]

    async def searched() -> tuple[SearchOutcome, float]:
        begun_at = asyncio.get_running_loop().time()
        search = PassageSearch(OnlyTheFirstAnswers(), MadeUpEmbedder(), Metrics())  # type: ignore[arg-type]
        stores = [STORE, *(msgspec.structs.replace(STORE, id=StoreId(f"vs_{number}")) for number in range(2, 6))]
        outcome = await search.search(stores, "cat", deadlines=Deadlines(index=0.1, whole=0.25))
        return outcome, asyncio.get_running_loop().time() - begun_at

    outcome, virtual_s = run(searched())
    assert [passage.text for passage in outcome.passages] == ["cat"]
    assert outcome.skipped == ("vectors",) and outcome.reasons == {"vectors": "late"}
    assert virtual_s == pytest.approx(0.1)


async def test_without_time_left_no_store_is_searched(filled: Retrieval) -> None:
    _, embedder = parts(filled)
    embedder.hold = asyncio.Event()

    class ForbiddenIndex:
        async def nearest(self, *_: object) -> list[object]:
            raise AssertionError

        matching = nearest

    search = PassageSearch(ForbiddenIndex(), embedder, Metrics())  # type: ignore[arg-type]
    with pytest.raises(SearchTooLate):
        await search.search([STORE], "cat", deadlines=Deadlines(whole=0.01))


async def test_what_one_stores_model_refuses_costs_no_other_store(filled: Retrieval) -> None:
    stores, embedder = parts(filled)

    class RefusesOne(MadeUpEmbedder):
        async def embed(self, tenant: TenantId, model: str, *rest: Any, **more: Any) -> Any:
            if model == "narrow":
                raise BadInput("context_length_exceeded", "The query is too long.")
            return await embedder.embed(tenant, MADE_UP.name, *rest, **more)

    narrow = msgspec.structs.replace(STORE, id=StoreId("vs_2"), model="narrow")
    await stores.passages.create(narrow)
    search = PassageSearch(stores.passages, RefusesOne(), Metrics())
    outcome = await search.search([narrow, STORE], "cats sleep on a roof")
    assert outcome.passages[0].text == TEXTS[1] and outcome.reasons == {"embedding": "failed"}


async def test_an_index_that_hangs_or_fails_is_no_answer_and_is_counted(filled: Retrieval) -> None:
    _, embedder = parts(filled)
    metrics = Metrics()

    class Stalled:
        async def nearest(self, *_: object) -> list[object]:
            await asyncio.Event().wait()
            return []

    search = PassageSearch(Stalled(), embedder, metrics)  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="in time"):
        await search.search([STORE], "cat", deadlines=Deadlines(index=0.01))
    skipped = metrics.counter("retrieval_skipped", "", "stage", "why")
    assert skipped.values == {("vectors", "late"): 1}

    class Dead:
        async def nearest(self, *_: object) -> list[object]:
            raise Unavailable("vector_stores_unavailable", "away")

    with pytest.raises(Unavailable, match="away"):
        await PassageSearch(Dead(), embedder, metrics).search([STORE], "cat")  # type: ignore[arg-type]
    assert skipped.values["vectors", "failed"] == 1
