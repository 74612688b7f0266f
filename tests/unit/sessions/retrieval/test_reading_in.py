"""Documents read into stores: chunks that stand where they say, failures with a reason, readers that die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sessions.model.errors import Unavailable
from sessions.model.types import TenantId, UnixMs
from sessions.retrieval.chunking import Chunking
from sessions.retrieval.services import VectorStores
from sessions.retrieval.vector_stores import DocumentId, StoreFile, StoreId, VectorStore
from tests.support.engines.made_up_embedder import MADE_UP, MadeUpEmbedder, made_up_retrieval

ACME = TenantId("acme")
STORE = VectorStore(
    id=StoreId("vs_1"), tenant=ACME, user=None, model=MADE_UP.name, dimensions=MADE_UP.dimensions, created_at=UnixMs(1)
)
LONG = "\n\n".join(f"Paragraph {number}. It says that the number is {number * 7}." for number in range(200))


class World:
    def __init__(self, stores: VectorStores, embedder: MadeUpEmbedder) -> None:
        self.stores, self.embedder, self.now = stores, embedder, 1_000_000_000

    async def add(self, name: str, text: str) -> None:
        file = StoreFile(
            id=DocumentId(name),
            store=STORE.id,
            tenant=ACME,
            filename=f"{name}.md",
            created_at=UnixMs(self.now),
            chunking=Chunking(40, 8),
        )
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
