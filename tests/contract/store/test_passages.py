"""The contract of the port `PassageIndex`, on SQLite in memory and in a file, and on PostgreSQL with pgvector."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from persistence.codec import PlainCodec
from persistence.passages import dialects
from persistence.passages import index as index_module
from persistence.passages.databases import PassageDatabase, SqlitePassages
from persistence.passages.index import SqlPassageIndex
from persistence.passages.postgres import PostgresPassages
from sessions.model.errors import BadInput
from sessions.model.types import TenantId, UnixMs
from sessions.retrieval.filters import Attributes, check_attributes, parse_filter
from sessions.retrieval.vector_stores import (
    DocumentId,
    FileStatus,
    ListSlice,
    NewChunk,
    StoreFile,
    StoreId,
    VectorStore,
)
from tests.support.engines.made_up_embedder import made_up_store, vector_of
from tests.support.stores.attribute_filters import matches
from tests.support.stores.journals import postgres

ACME, BETA = TenantId("acme"), TenantId("beta")
NOW = UnixMs(1_800_000_000_000)
LATER = UnixMs(NOW + 60_000)
ANIMALS = ("The fox jumps over the dog.", "A cat sleeps on the roof.", "Horses run in the field all day.")


@pytest.fixture(params=["memory", "file", pytest.param("postgres", marks=pytest.mark.cluster)])
async def index(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlPassageIndex]:
    database: PassageDatabase
    if request.param == "postgres":
        database = PostgresPassages(postgres().dsn, f"passages_{uuid4().hex[:8]}")
    else:
        database = SqlitePassages(tmp_path / "passages.db" if request.param == "file" else None)
    await database.open()
    yield SqlPassageIndex(database, PlainCodec())
    await database.close()


def a_store(name: str = "vs_1", tenant: TenantId = ACME, user: str | None = None) -> VectorStore:
    return made_up_store(name, tenant, user=user, created_at=NOW, name="animals", metadata={"a": "b"})


def a_file(name: str, store: str = "vs_1", tenant: TenantId = ACME, **more: object) -> StoreFile:
    about = {"filename": f"{name}.txt", "created_at": NOW, "attributes": {}, "size": 9, **more}
    return StoreFile(id=DocumentId(name), store=StoreId(store), tenant=tenant, **about)  # type: ignore[arg-type]


async def filled(index: SqlPassageIndex, file: StoreFile, texts: tuple[str, ...] = ANIMALS) -> None:
    await index.add_file(file, "\n".join(texts))
    claimed = await index.claim(NOW, LATER)
    assert claimed is not None and claimed.id == file.id
    at, chunks = 0, []
    for text in texts:
        chunks.append(NewChunk(text, at, at + len(text), vector_of(text)))
        at += len(text) + 1
    assert await index.put_chunks(claimed, chunks, last=True, until=LATER)


async def found(index: SqlPassageIndex, query: str, store: str = "vs_1", tenant: TenantId = ACME) -> list[str]:
    near = [number for number, _ in await index.nearest(tenant, StoreId(store), vector_of(query), None, 10)]
    worded = await index.matching(tenant, StoreId(store), [query], None, 10)
    passages = {each.number: each.text for each in await index.passages(tenant, StoreId(store), near + worded)}
    return [passages[number] for number in dict.fromkeys(worded + near)]


async def test_a_store_is_its_tenants_and_is_found_as_it_was_made(index: SqlPassageIndex) -> None:
    made = a_store(user="ann")
    await index.create(made)
    await index.create(a_store("vs_2"))
    await index.create(a_store("vs_1", BETA))
    assert await index.store(ACME, made.id) == made
    assert await index.store(BETA, StoreId("vs_2")) is None
    assert [each.id for each in await index.stores(ACME, None, anybody=True)] == ["vs_2", "vs_1"]
    assert [each.id for each in await index.stores(ACME, "ann", anybody=False)] == ["vs_1"]
    changed = msgspec.structs.replace(made, name="beasts", metadata={})
    await index.change(changed)
    assert await index.store(ACME, made.id) == changed
    assert await index.forget_user(ACME, "ann") == 1
    assert await index.store(ACME, made.id) is None and await index.store(BETA, made.id) is not None


async def test_documents_are_found_by_meaning_and_by_words_where_they_stand(index: SqlPassageIndex) -> None:
    await index.create(a_store())
    await filled(index, a_file("f1", attributes={"kind": "fable"}))
    assert (await found(index, "cats that sleep"))[0] == ANIMALS[1]
    near = await index.nearest(ACME, StoreId("vs_1"), vector_of(ANIMALS[2]), None, 2)
    assert near[0][1] == pytest.approx(1, abs=2e-3) and len(near) == 2 and near[0][1] > near[1][1]
    (passage,) = await index.passages(ACME, StoreId("vs_1"), [near[0][0]])
    whole = await index.text(ACME, StoreId("vs_1"), DocumentId("f1"))
    assert whole is not None and whole[passage.start : passage.end] == passage.text == ANIMALS[2]
    assert (passage.filename, passage.attributes) == ("f1.txt", {"kind": "fable"})
    assert await index.matching(ACME, StoreId("vs_1"), ["of the and"], None, 5) == []
    assert await index.matching(ACME, StoreId("vs_1"), ["zebra"], None, 5) == []


async def test_in_a_large_store_rare_words_find_passages_and_common_ones_only_together(
    index: SqlPassageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (dialects, index_module):
        monkeypatch.setattr(module, "COMMON_CHUNKS", 4)
    monkeypatch.setattr(dialects, "RANKED_CHUNKS", 8)
    texts = [f"River {'bridge' if number % 2 else 'boat'} {'lantern' if number == 7 else ''}" for number in range(12)]
    await index.create(a_store())
    await filled(index, a_file("f1"), tuple(texts))
    await index.create(a_store("vs_2"))
    await filled(index, a_file("f1", "vs_2"), ("River lantern",))

    async def matching(query: str, only: str | None = None) -> list[str]:
        wanted = None if only is None else parse_filter({"type": "eq", "key": "kind", "value": only})
        numbers = await index.matching(ACME, StoreId("vs_1"), [query], wanted, 10)
        passages = {each.number: each.text for each in await index.passages(ACME, StoreId("vs_1"), numbers)}
        return [passages[number] for number in numbers]

    for _ in range(2):  # then common words are known
        assert await matching("river lantern") == [texts[7]]
        assert sorted(await matching("river bridge")) == sorted(text for text in texts if "bridge" in text)
        assert sorted(await matching("river brigde bridge")) == sorted(text for text in texts if "bridge" in text)
        assert await matching("bridge boat") == []
        assert await matching("lantern", "fable") == [] and await matching("cellar") == []
        await index.nearest(ACME, StoreId("vs_1"), vector_of("river"), None, 1)
    await filled(index, a_file("f2"), ("River bank", "River tar"))
    await index.remove_file(ACME, StoreId("vs_1"), DocumentId("f1"))
    assert sorted(await matching("river")) == ["River bank", "River tar"], "a word that was common is rare now"


async def test_nothing_of_another_tenants_store_or_of_one_with_the_same_name(index: SqlPassageIndex) -> None:
    await index.create(a_store())
    await index.create(a_store(tenant=BETA))
    await filled(index, a_file("f1"))
    await filled(index, a_file("f1", tenant=BETA), ("A secret of beta about the fox.",))
    assert set(await found(index, "secret fox")) <= set(ANIMALS)
    assert await found(index, "secret fox", tenant=BETA) == ["A secret of beta about the fox."]
    assert await found(index, "fox", store="vs_2") == []
    numbers = [number for number, _ in await index.nearest(BETA, StoreId("vs_1"), vector_of("fox"), None, 9)]
    assert await index.passages(ACME, StoreId("vs_1"), numbers) == []


async def test_what_is_not_whole_is_not_found_and_what_is_removed_is_gone(index: SqlPassageIndex) -> None:
    await index.create(a_store())
    await index.add_file(a_file("f1"), ANIMALS[0])
    file = await index.claim(NOW, LATER)
    assert file is not None and await index.claim(NOW, LATER) is None
    chunk = NewChunk(ANIMALS[0], 0, len(ANIMALS[0]), vector_of(ANIMALS[0]))
    assert await index.put_chunks(file, [chunk], last=False, until=LATER)
    assert await found(index, "fox") == []
    again = await index.claim(UnixMs(LATER + 1), UnixMs(LATER + 2))  # whoever claimed it has died
    assert again is not None and again.id == "f1"
    assert await index.put_chunks(again, [chunk], last=True, until=LATER)
    assert await found(index, "fox") == [ANIMALS[0]]
    assert await index.remove_file(ACME, StoreId("vs_1"), DocumentId("f1"))
    assert not await index.remove_file(ACME, StoreId("vs_1"), DocumentId("f1"))
    assert await found(index, "fox") == [] and await index.text(ACME, StoreId("vs_1"), DocumentId("f1")) is None
    assert not await index.put_chunks(again, [chunk], last=True, until=LATER)  # removed under its reader
    await filled(index, a_file("f2"))
    assert await index.delete(ACME, StoreId("vs_1")) and not await index.delete(ACME, StoreId("vs_1"))
    assert await found(index, "fox") == [] and await index.file(ACME, StoreId("vs_1"), DocumentId("f2")) is None


async def test_a_store_that_is_being_loaded_holds_up_no_other_tenant(
    index: SqlPassageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant in (ACME, BETA):
        await index.create(a_store("vs_1", tenant))
        await filled(index, a_file("f1", tenant=tenant))
    read, begun, goes_on = index._database.rows, asyncio.Event(), asyncio.Event()

    async def slow(text: str, values: Any = ()) -> list[Any]:
        if "packed_signs" in text and ACME in values:
            begun.set()
            await goes_on.wait()
        return await read(text, values)

    monkeypatch.setattr(index._database, "rows", slow)
    loading = asyncio.create_task(found(index, ANIMALS[0]))
    await asyncio.wait_for(begun.wait(), 60)
    assert (await asyncio.wait_for(found(index, ANIMALS[1], tenant=BETA), 60))[0] == ANIMALS[1]
    goes_on.set()
    assert (await asyncio.wait_for(loading, 60))[0] == ANIMALS[0]


async def test_a_search_sees_at_once_what_another_process_adds_or_removes(
    index: SqlPassageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "OVERSAMPLED", 1)
    other = SqlPassageIndex(index._database, PlainCodec())
    await index.create(a_store())

    async def nearest(only: str | None = None) -> tuple[str, ...]:
        wanted = None if only is None else parse_filter({"type": "eq", "key": "kind", "value": only})
        texts = tuple[str, ...]()
        for searched in (index, other):
            numbers = await searched.nearest(ACME, StoreId("vs_1"), vector_of("The fox jumps"), wanted, 1)
            passages = await searched.passages(ACME, StoreId("vs_1"), [number for number, _ in numbers])
            texts += tuple(passage.text for passage in passages)
        return texts

    assert await nearest() == ()
    await filled(index, a_file("f1", attributes={"kind": "fable"}), ANIMALS[:1])
    assert await nearest() == ANIMALS[:1] * 2
    await filled(other, a_file("f2"), ("The fox jumps",))
    assert await nearest() == ("The fox jumps",) * 2
    assert await nearest("fable") == ANIMALS[:1] * 2 and await nearest("novel") == ()
    await other.remove_file(ACME, StoreId("vs_1"), DocumentId("f2"))
    assert await nearest() == ANIMALS[:1] * 2, "the chunk that is gone takes no place among the nearest"
    await index.add_file(a_file("f1"), "text", replace=True)
    assert await nearest() == ()


async def test_a_search_that_is_cancelled_while_signs_are_read_keeps_what_it_has_read(
    index: SqlPassageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "ROWS_AT_ONCE", 1)
    await index.create(a_store())
    for number, text in enumerate(ANIMALS):
        await filled(index, a_file(f"f{number}"), (text,))
    read, rows_of = list[int](), index._database.rows

    async def counted(text: str, values: Any = ()) -> list[Any]:
        rows = await rows_of(text, values)
        if "c.bits" in text:
            read.append(len(rows))
            if len(read) == 2:
                raise asyncio.CancelledError
        return rows

    monkeypatch.setattr(index._database, "rows", counted)
    with pytest.raises(asyncio.CancelledError):
        await index.nearest(ACME, StoreId("vs_1"), vector_of("fox"), None, 10)
    for _ in range(2):
        assert len(await index.nearest(ACME, StoreId("vs_1"), vector_of("fox"), None, 10)) == len(ANIMALS)
    assert read == [1, 1, 1, 1], "the first row was kept, and nothing is read again"


async def test_a_document_is_in_a_store_once_and_is_removed_from_all_stores_of_its_tenant(
    index: SqlPassageIndex,
) -> None:
    for store in (a_store(), a_store("vs_2"), a_store(tenant=BETA)):
        await index.create(store)
        await filled(index, a_file("f1", store=store.id, tenant=store.tenant))
    await index.add_file(a_file("f1"), "Another text.")
    assert await index.text(ACME, StoreId("vs_1"), DocumentId("f1")) != "Another text."
    failed = a_file("f2", status="failed", error="It cannot be read.")
    await index.add_file(failed, "")
    assert await index.file(ACME, StoreId("vs_1"), DocumentId("f2")) == failed
    assert await index.claim(NOW, LATER) is None
    assert await index.remove_document(ACME, DocumentId("f1")) == 2
    assert await index.remove_document(ACME, DocumentId("f1")) == 0
    assert await found(index, "fox") == []
    assert await index.file(BETA, StoreId("vs_1"), DocumentId("f1")) is not None


async def test_files_their_states_and_their_batches(index: SqlPassageIndex) -> None:
    await index.create(a_store())
    for name in ("f1", "f2", "f3"):
        await index.add_file(
            a_file(name, batch="b1" if name != "f3" else "", created_at=UnixMs(NOW + int(name[1]))), "x"
        )
    assert [each.id for each in await index.files(ACME, StoreId("vs_1"))] == ["f3", "f2", "f1"]
    first = await index.claim(NOW, LATER)
    assert first is not None and first.id == "f1"
    await index.fail(first, "it has no text")
    failed = await index.file(ACME, StoreId("vs_1"), DocumentId("f1"))
    assert failed is not None and (failed.status, failed.error) == ("failed", "it has no text")
    assert await index.cancel_batch(ACME, StoreId("vs_1"), "b1") == 1
    counts = await index.counts(ACME, StoreId("vs_1"), batch="b1")
    assert (counts.failed, counts.cancelled, counts.total) == (1, 1, 2)
    assert (await index.counts(ACME, StoreId("vs_1"))).in_progress == 1
    assert [each.id for each in await index.files(ACME, StoreId("vs_1"), batch="b1")] == ["f2", "f1"]
    assert await index.set_attributes(ACME, StoreId("vs_1"), DocumentId("f3"), {"n": 2})
    third = await index.file(ACME, StoreId("vs_1"), DocumentId("f3"))
    assert third is not None and third.attributes == {"n": 2}
    assert not await index.set_attributes(BETA, StoreId("vs_1"), DocumentId("f3"), {"n": 3})


ROWS: tuple[Attributes, ...] = (
    {},
    {"n": 1, "lang": "de", "new": True},
    {"n": 2.5, "lang": "en", "new": False},
    {"n": "1", "lang": "Ünï'\"", "other key $.x": "y"},
    {"n": True},
)
FILTERS = (
    {"type": "eq", "key": "n", "value": 1},
    {"type": "eq", "key": "n", "value": "1"},
    {"type": "ne", "key": "n", "value": 1},
    {"type": "gt", "key": "n", "value": 1},
    {"type": "gte", "key": "n", "value": 1},
    {"type": "lt", "key": "n", "value": 2.5},
    {"type": "lte", "key": "n", "value": 2.5},
    {"type": "gte", "key": "lang", "value": "en"},
    {"type": "eq", "key": "new", "value": True},
    {"type": "ne", "key": "new", "value": True},
    {"type": "eq", "key": "lang", "value": "Ünï'\""},
    {"type": "eq", "key": "other key $.x", "value": "y"},
    {"type": "in", "key": "n", "value": [2.5, "1"]},
    {"type": "nin", "key": "lang", "value": ["de", "en"]},
    {"type": "eq", "key": "' OR 1=1 --", "value": "x"},
    {
        "type": "or",
        "filters": [
            {"type": "eq", "key": "n", "value": 1},
            {
                "type": "and",
                "filters": [{"type": "eq", "key": "lang", "value": "en"}, {"type": "eq", "key": "new", "value": False}],
            },
        ],
    },
)


async def test_filters_are_the_same_in_every_database_and_in_words(index: SqlPassageIndex) -> None:
    await index.create(a_store())
    for number, attributes in enumerate(ROWS):
        await filled(index, a_file(f"f{number}", attributes=attributes), (f"The fox number {number}.",))
    for given in FILTERS:
        only = parse_filter(given)
        wanted = {f"f{number}" for number, attributes in enumerate(ROWS) if matches(only, attributes)}
        near = await index.nearest(ACME, StoreId("vs_1"), vector_of("fox"), only, 10)
        worded = await index.matching(ACME, StoreId("vs_1"), ["fox"], only, 10)
        for numbers in ([number for number, _ in near], worded):
            passages = await index.passages(ACME, StoreId("vs_1"), numbers)
            assert {each.file for each in passages} == wanted, given


async def test_a_reader_whose_file_was_added_anew_stores_nothing_more(index: SqlPassageIndex) -> None:
    await index.create(a_store())
    await index.add_file(a_file("f1"), "\n".join(ANIMALS))
    first = await index.claim(NOW, LATER)
    assert first is not None
    chunks = [NewChunk(text, 0, len(text), vector_of(text)) for text in ANIMALS]
    assert await index.put_chunks(first, chunks[:1], last=False, until=UnixMs(LATER + 1))
    first = msgspec.structs.replace(first, claimed_until=UnixMs(LATER + 1))
    await index.add_file(a_file("f1"), "\n".join(ANIMALS), replace=True)  # between two pieces
    assert not await index.put_chunks(first, chunks[1:2], last=True, until=LATER)
    second = await index.claim(NOW, UnixMs(LATER + 2))
    assert second is not None
    assert await index.put_chunks(second, chunks[:2], last=False, until=UnixMs(LATER + 3))
    second = msgspec.structs.replace(second, claimed_until=UnixMs(LATER + 3))
    assert not await index.fail(first, "It cannot be read.")
    assert not await index.put_chunks(first, chunks[2:], last=True, until=LATER)
    assert await index.put_chunks(second, chunks[2:], last=True, until=LATER)
    assert sorted(await found(index, "fox cat horses")) == sorted(ANIMALS)
    near = await index.nearest(ACME, StoreId("vs_1"), vector_of("fox"), None, 10)
    assert len(near) == len(ANIMALS), "every piece once"


async def test_a_cancelled_reader_leaves_no_chunks(index: SqlPassageIndex) -> None:
    await index.create(a_store())
    await index.add_file(a_file("f1", batch="b1"), ANIMALS[0])
    file = await index.claim(NOW, LATER)
    assert file is not None
    chunk = NewChunk(ANIMALS[0], 0, len(ANIMALS[0]), vector_of(ANIMALS[0]))
    assert await index.put_chunks(file, [chunk], last=False, until=LATER)
    assert await index.cancel_batch(ACME, StoreId("vs_1"), "b1") == 1
    assert not await index.put_chunks(file, [chunk], last=True, until=LATER)
    await index.add_file(a_file("f1", batch="b2"), ANIMALS[0])
    moved = await index.file(ACME, StoreId("vs_1"), DocumentId("f1"))
    assert moved is not None and (moved.status, moved.batch) == ("cancelled", "b2")


async def test_documents_are_listed_once_and_stores_are_read_by_their_ids(index: SqlPassageIndex) -> None:
    for store in (a_store(), a_store("vs_2"), a_store(tenant=BETA)):
        await index.create(store)
        await index.add_file(a_file("file-1", store=store.id, tenant=store.tenant), "x")
    await index.add_file(a_file("file-2"), "x")
    await index.add_file(a_file("file_3"), "x")
    uploads = await index.documents(None, "file-", None, 9)
    assert uploads == [(ACME, "file-1"), (ACME, "file-2"), (BETA, "file-1")]
    assert await index.documents(ACME, "file-", None, 9) == uploads[:2]
    assert await index.documents(None, "file-", uploads[0], 1) == uploads[1:2]
    both = await index.stores_of_ids(ACME, [StoreId("vs_1"), StoreId("vs_2"), StoreId("vs_1"), StoreId("vs_9")])
    assert sorted(store.id for store in both) == ["vs_1", "vs_2"]
    assert await index.stores_of_ids(ACME, []) == []
    names = [DocumentId(name) for name in ("file-1", "file-1", "file_3", "file-9")]
    assert await index.present(ACME, names) == {"file-1", "file_3"} and await index.present(BETA, names) == {"file-1"}
    assert await index.present(ACME, []) == set()


@pytest.mark.cluster
async def test_a_read_of_a_stopped_server_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.passages.postgres.TIMEOUT_S", 600.0)
    server = postgres()
    database = PostgresPassages(server.dsn, f"passages_{uuid4().hex[:8]}")
    await database.open()
    try:
        async with asyncio.timeout(60):
            server.pause()
            try:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await database.rows("SELECT 1")
            finally:
                server.resume()
            assert await database.rows("SELECT 1") == [(1,)], "on another connection"
    finally:
        await database.close()


async def test_a_nul_character_is_refused_and_no_reason_to_come_again(index: SqlPassageIndex) -> None:
    """PostgreSQL cannot hold it: with one in an id or an attribute the database seemed to be away."""
    await index.create(a_store())
    store, nul, file = StoreId("vs_1"), DocumentId("a\0"), DocumentId("f")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: index.store(ACME, StoreId("vs\0")),
        lambda: index.delete(ACME, StoreId("vs\0")),
        lambda: index.file(ACME, store, nul),
        lambda: index.text(ACME, store, nul),
        lambda: index.remove_file(ACME, store, nul),
        lambda: index.remove_document(ACME, nul),
        lambda: index.set_attributes(ACME, store, nul, {}),
        lambda: index.set_attributes(ACME, store, file, {"a\0": 1.0}),
        lambda: index.add_file(a_file("f", attributes={"a": "b\0"}), "text"),
        lambda: index.files(ACME, store, batch="\0"),
        lambda: index.counts(ACME, store, batch="\0"),
        lambda: index.cancel_batch(ACME, store, "\0"),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(BadInput, match="NUL"):
            await call()
            pytest.fail(f"call {number} was taken")
    assert await index.stores_of_ids(ACME, [StoreId("vs\0"), store]) == [a_store()]
    assert await index.present(ACME, [nul]) == set()
    for wrong in (
        {"type": "eq", "key": "a\0", "value": 1},
        {"type": "gt", "key": "a", "value": "b\0"},
        {"type": "in", "key": "a", "value": ["b\0"]},
    ):
        with pytest.raises(BadInput, match="NUL"):
            parse_filter(wrong)
    with pytest.raises(BadInput, match="NUL"):
        check_attributes({"a": "b\0"})


async def test_a_part_of_a_list_is_all_that_is_read(index: SqlPassageIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page of a list read the whole list: a hundred pages at once took nearly a gigabyte."""
    for number in range(5):
        await index.create(a_store(f"vs_{number}", user="ann" if number % 2 else None))
        await index.add_file(a_file(f"f{number}", "vs_0", batch="b" if number % 2 else ""), "text")
    await index.create(a_store("vs_9", BETA))
    read, rows_of = list[int](), index._database.rows

    async def counted(*given: Any, **more: Any) -> list[Any]:
        rows = await rows_of(*given, **more)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(index._database, "rows", counted)

    async def stores(anybody: bool = True, **part: Any) -> list[str]:
        return [each.id for each in await index.stores(ACME, "ann", anybody=anybody, part=ListSlice(**part))]

    async def files(batch: str = "", status: FileStatus | None = None, **part: Any) -> list[str]:
        listed = await index.files(ACME, StoreId("vs_0"), batch=batch, status=status, part=ListSlice(**part))
        return [each.id for each in listed]

    assert await stores(limit=2) == ["vs_4", "vs_3"]
    assert await stores(limit=2, after="vs_3") == ["vs_2", "vs_1"]
    assert await stores(limit=2, after="vs_3", newest_first=False) == ["vs_4"]
    assert await stores(anybody=False, limit=1, after="vs_3") == ["vs_1"]
    assert await stores(limit=9, after="vs_9") == [], "it is another tenant's"
    assert await files(limit=2) == ["f4", "f3"]
    assert await files(limit=2, after="f3") == ["f2", "f1"]
    assert await files(limit=2, newest_first=False, after="f0") == ["f1", "f2"]
    assert await files("b", limit=1, newest_first=False) == ["f1"]
    assert await files("b", limit=5, after="f3") == ["f1"]
    assert read == [2, 2, 1, 1, 0, 2, 2, 2, 1, 1]
    await index.cancel_batch(ACME, StoreId("vs_0"), "b")
    assert await files(status="cancelled") == ["f3", "f1"]
    assert await files(status="in_progress", limit=2, after="f3") == ["f2", "f0"]
    assert await files("b", status="in_progress") == []
    with pytest.raises(BadInput, match="NUL"):
        await stores(after="\0")
