"""Documents: cut, read in, searched, filtered, removed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.metrics import Metrics
from sessions.model.errors import BadInput, Unavailable
from sessions.model.types import Principal, TenantId, UnixMs
from sessions.retrieval import deleted_uploads
from sessions.retrieval.chunking import Chunking, chunks
from sessions.retrieval.deleted_uploads import remove_deleted_uploads, sweep_deleted_uploads
from sessions.retrieval.embedding import TokenSpans
from sessions.retrieval.filters import COMPARISONS_MAX, check_attributes, parse_filter
from sessions.retrieval.search import Deadlines, PassageSearch, SearchOutcome, SearchTooLate
from sessions.retrieval.services import Retrieval, VectorStores
from sessions.retrieval.vector_stores import DocumentId, Passage, StoreFile, StoreId, may_see_store
from tests.support.engines.made_up_embedder import (
    MADE_UP,
    MadeUpEmbedder,
    made_up_file,
    made_up_retrieval,
    made_up_store,
)
from tests.support.virtual_time import run

PLAIN = st.text(alphabet="ab .\n#é漢!?", max_size=400)


def spans_of(text: str) -> TokenSpans:
    found = [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]
    return TokenSpans(tuple(begin for begin, _ in found), tuple(end for _, end in found))


@given(PLAIN, st.integers(2, 40), st.integers(0, 20))
def test_every_token_is_in_a_chunk_and_no_chunk_is_too_long(text: str, tokens_max: int, overlap: int) -> None:
    spans = spans_of(text)
    how = Chunking(tokens_max, min(overlap, tokens_max // 2))
    made = list(chunks(text, spans, how))
    covered = {at for each in made for at, begin in enumerate(spans.starts) if each.start <= begin < each.end}
    assert covered == set(range(len(spans.starts)))
    counts = [sum(each.start <= begin < each.end for begin in spans.starts) for each in made]
    assert all(0 < count <= tokens_max for count in counts)
    assert [each.start for each in made] == sorted({each.start for each in made})
    assert [each.end for each in made] == sorted({each.end for each in made})


def test_a_cut_is_where_a_heading_begins_else_between_sentences() -> None:
    text = "# One\n\nFirst words here. More of them.\n\n## Two\n\nSecond words here. More of them again and again."
    made = [text[each.start : each.end] for each in chunks(text, spans_of(text), Chunking(14, 0))]
    assert made[0].endswith("More of them.") and made[1].startswith("## Two")
    plain = "One two three four. Five six seven eight. Nine ten eleven twelve."
    said = [plain[each.start : each.end] for each in chunks(plain, spans_of(plain), Chunking(8, 0))]
    assert said == ["One two three four.", "Five six seven eight.", "Nine ten eleven twelve."]


def test_neighbours_share_the_end_of_the_one_before() -> None:
    text = " ".join(f"Sentence number {number} is here." for number in range(20))
    made = list(chunks(text, spans_of(text), Chunking(24, 8)))
    assert all(first.end > second.start > first.start for first, second in pairwise(made))
    assert all(text[each.start :].startswith("Sentence") for each in made)


def eq(key: str = "k", value: Any = 1) -> dict[str, Any]:
    return {"type": "eq", "key": key, "value": value}


DEEP: dict[str, Any] = eq()
for _ in range(10):
    DEEP = {"type": "and", "filters": [DEEP]}


@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        {},
        {"type": "like", "key": "k", "value": "x"},
        {"type": "eq", "key": "", "value": 1},
        {"type": "eq", "key": "k"},
        {"type": "eq", "key": "k", "value": None},
        {"type": "eq", "key": "k", "value": [1]},
        {"type": "eq", "key": "k", "value": 1, "more": 2},
        {"type": "gt", "key": "k", "value": True},
        {"type": "in", "key": "k", "value": 1},
        {"type": "in", "key": "k", "value": []},
        {"type": "and", "filters": []},
        {"type": "and", "filters": [None]},
        {"type": "or", "filters": [eq()] * (COMPARISONS_MAX + 1)},
        {"type": "eq", "key": "k", "value": "x" * 600},
        DEEP,
    ],
)
def test_what_is_none_is_refused_with_what_is_wrong(given: Any) -> None:
    with pytest.raises(BadInput, match="filters"):
        parse_filter(given)


def test_attributes_have_bounds() -> None:
    assert check_attributes({"a": 1, "b": "x", "c": False}) == {"a": 1, "b": "x", "c": False}
    for wrong in ({"": 1}, {"x" * 65: 1}, {"a": "x" * 513}, {str(n): n for n in range(17)}):
        with pytest.raises(BadInput):
            check_attributes(wrong)


def principal(tenant: str = "acme", role: str = "user", user: str | None = "ann") -> Principal:
    return Principal(tenant=TenantId(tenant), key_id="k", user=user, role=role)  # type: ignore[arg-type]


def test_a_user_sees_their_own_and_a_service_its_tenants() -> None:
    store = made_up_store(user="ann")
    assert may_see_store(principal(), store) and may_see_store(principal(role="service", user=None), store)
    assert not may_see_store(principal(user="bob"), store) and not may_see_store(principal(user=None), store)
    assert not may_see_store(principal(tenant="beta", role="operator", user=None), store)


ACME = TenantId("acme")
STORE = made_up_store()
LONG = "\n\n".join(f"Paragraph {number}. It says that the number is {number * 7}." for number in range(200))


class World:
    def __init__(self, stores: VectorStores, embedder: MadeUpEmbedder) -> None:
        self.stores, self.embedder, self.now = stores, embedder, 1_000_000_000

    async def add(self, name: str, text: str) -> None:
        file = made_up_file(name, STORE, created_at=UnixMs(self.now), chunking=Chunking(40, 8))
        await self.stores.passages.add_file(file, text)

    async def file(self, name: str) -> StoreFile:
        found = await self.stores.passages.file(ACME, STORE.id, DocumentId(name))
        assert found is not None
        return found


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made: list[World] = []
    async with made_up_retrieval(lambda: UnixMs(made[0].now if made else 1), reads=False) as retrieval:
        assert retrieval.vector_stores is not None and isinstance(retrieval.embedder, MadeUpEmbedder)
        made.append(World(retrieval.vector_stores, retrieval.embedder))
        await retrieval.vector_stores.passages.create(STORE)
        yield made[0]


async def test_every_passage_stands_where_it_says(world: World) -> None:
    await world.add("f1", LONG)
    assert await world.stores.reader.read_one() and not await world.stores.reader.read_one()
    assert (await world.file("f1")).status == "completed"
    found = await world.stores.search.search([STORE], "the number is 70", limit=50)
    text = await world.stores.passages.text(ACME, STORE.id, DocumentId("f1"))
    assert text == LONG and len(found.passages) == 50
    assert all(text[each.start : each.end] == each.text for each in found.passages)
    assert any("number is 70." in each.text for each in found.passages[:3])


async def test_what_has_no_text_fails_with_a_reason(world: World) -> None:
    await world.add("f1", " \n ")
    assert await world.stores.reader.read_one()
    failed = await world.file("f1")
    assert failed.status == "failed" and "no text" in failed.error


async def test_a_model_that_is_away_delays_and_loses_nothing(world: World) -> None:
    await world.add("f1", LONG)
    world.embedder.away = True
    with pytest.raises(Unavailable):
        await world.stores.reader.read_one()
    assert (await world.file("f1")).status == "in_progress"
    world.embedder.away = False
    assert not await world.stores.reader.read_one()  # claimed until the first reader's time is over
    world.now += 1_000_000
    assert await world.stores.reader.read_one()
    counted = await world.stores.search.search([STORE], "number", limit=50)
    assert (await world.file("f1")).status == "completed"
    assert len({each.start for each in counted.passages}) == len(counted.passages), "nothing is there twice"


async def test_a_file_that_is_removed_while_it_is_read_leaves_nothing(world: World) -> None:
    await world.add("f1", LONG)
    world.embedder.hold = asyncio.Event()
    reading = asyncio.create_task(world.stores.reader.read_one())
    async with asyncio.timeout(60):
        while not world.embedder.waiting:
            await asyncio.wait((asyncio.ensure_future(asyncio.Event().wait()),), timeout=0.01)
    await world.stores.passages.remove_file(ACME, STORE.id, DocumentId("f1"))
    world.embedder.hold.set()
    assert await reading
    assert (await world.stores.search.search([STORE], "number")).passages == []


TEXTS = ("The fox jumps over the dog.", "A cat sleeps on the roof.", "Horses run in the field all day.")


@pytest.fixture
async def filled() -> AsyncIterator[Retrieval]:
    async with made_up_retrieval(lambda: UnixMs(1_000_000_000), reads=False) as made:
        stores = made.vector_stores
        assert stores is not None
        await stores.passages.create(STORE)
        for number, text in enumerate(TEXTS):
            await stores.passages.add_file(made_up_file(f"f{number}", STORE), text)
            assert await stores.reader.read_one()
        yield made


def parts(made: Retrieval) -> tuple[VectorStores, MadeUpEmbedder]:
    assert made.vector_stores is not None and isinstance(made.embedder, MadeUpEmbedder)
    return made.vector_stores, made.embedder


async def test_the_best_passage_is_first_by_every_ranker(filled: Retrieval) -> None:
    stores, _ = parts(filled)
    for ranker in ("auto", "none", "words", "maxsim"):
        found = await stores.search.search([STORE], "cats sleep on a roof", limit=2, ranker=ranker)
        assert found.passages[0].text == TEXTS[1] and not found.reasons and len(found.passages) <= 2
        assert (found.tokens == 0) == (ranker == "words")
    assert (await stores.search.search([], "x")).passages == []


async def test_without_its_embedding_a_query_is_looked_for_by_words_and_the_answer_says_so(filled: Retrieval) -> None:
    stores, embedder = parts(filled)
    embedder.away = True
    found = await stores.search.search([STORE], "cat", ranker="maxsim")
    assert [each.text for each in found.passages] == [TEXTS[1]] and list(found.reasons) == ["embedding", "ranking"]
    embedder.away, embedder.hold = False, asyncio.Event()
    late = await stores.search.search([STORE], "cat", deadlines=Deadlines(embedding=0.01))
    assert [each.text for each in late.passages] == [TEXTS[1]] and list(late.reasons) == ["embedding"]


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
    assert outcome.reasons == {"vectors": "late"}
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

        async def matching(self, *_: object) -> list[int]:
            return []

    search = PassageSearch(Stalled(), embedder, metrics)  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="in time"):
        await search.search([STORE], "cat", deadlines=Deadlines(index=0.01))
    skipped = metrics.counter("retrieval_skipped", "", "stage", "why")
    assert skipped.values == {("vectors", "late"): 1}

    class Dead:
        async def nearest(self, *_: object) -> list[object]:
            raise Unavailable("vector_stores_unavailable", "away")

        matching = nearest

    with pytest.raises(Unavailable, match="away"):
        await PassageSearch(Dead(), embedder, metrics).search([STORE], "cat")  # type: ignore[arg-type]
    assert skipped.values["vectors", "failed"] == 1


NOW = UnixMs(5)


class Files:
    """Stands in for the files of a journal: those that are there, by tenant."""

    def __init__(self, **present: set[str]) -> None:
        self.present = present
        self.away = False
        self.looked = asyncio.Event()

    async def existing(self, tenant: str, file_ids: list[str], now: UnixMs) -> set[str]:
        if self.away:
            self.away = False
            raise Unavailable("journal_unavailable", "away")
        self.looked.set()
        return set(file_ids) & self.present.get(tenant, set())


async def test_only_documents_of_deleted_files_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_uploads, "PAGE", 2)
    async with made_up_retrieval(lambda: NOW, reads=False) as retrieval:
        assert retrieval.vector_stores is not None
        index = retrieval.vector_stores.passages
        names = ("file-1", "file-2", "file-3", "file_text")
        for tenant, store in (("acme", "vs_1"), ("acme", "vs_2"), ("beta", "vs_1")):
            made = made_up_store(store, tenant)
            await index.create(made)
            for name in names:
                await index.add_file(made_up_file(name, made), "A text.")

        async def left(tenant: str, store: str) -> list[str]:
            return sorted(file.id for file in await index.files(TenantId(tenant), StoreId(store)))

        files: Any = Files(acme={"file-2"}, beta={"file-1", "file-2", "file-3"})
        assert await remove_deleted_uploads(index, files, lambda: NOW, TenantId("beta")) == 0
        assert await remove_deleted_uploads(index, files, lambda: NOW) == 2
        assert await left("acme", "vs_1") == await left("acme", "vs_2") == ["file-2", "file_text"]
        assert await left("beta", "vs_1") == sorted(names)


async def test_a_sweep_that_fails_is_repeated() -> None:
    async with made_up_retrieval(lambda: NOW, reads=False) as retrieval:
        assert retrieval.vector_stores is not None
        index = retrieval.vector_stores.passages
        await index.create(STORE)
        await index.add_file(made_up_file("file-1", STORE), "A text.")
        files: Any = Files()
        files.away = True
        sweeping = asyncio.create_task(sweep_deleted_uploads(index, files, lambda: NOW, every_s=0.001))
        async with asyncio.timeout(60):
            await files.looked.wait()
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        assert not files.away
