"""Documents of others: every way into a vector store of another tenant or user, through the doors of a real server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from persistence.codec import PlainCodec
from persistence.passages.databases import SqlitePassages
from persistence.passages.index import SqlPassageIndex
from sessions.model.types import Principal, TenantId, UnixMs
from sessions.retrieval.vector_stores import DocumentId, NewChunk, StoreFile, StoreId, VectorStore
from tests.support.doors.assembly import Assembly, assembled
from tests.support.engines.made_up_embedder import MADE_UP, vector_of

SECRET = "The combination of the safe is 4711 nightingale."


def a_key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


KEYS = {
    a_key("ann"): Principal(tenant=TenantId("acme"), key_id="ann", user="ann"),
    a_key("bob"): Principal(tenant=TenantId("acme"), key_id="bob", user="bob"),
    a_key("eve"): Principal(tenant=TenantId("beta"), key_id="eve", role="service"),
    a_key("acme"): Principal(tenant=TenantId("acme"), key_id="acme", role="service"),
}


class World(NamedTuple):
    assembly: Assembly
    http: httpx.AsyncClient
    store: str
    file: str

    async def ask(self, who: str, method: str, path: str, body: Any = None) -> httpx.Response:
        return await self.http.request(method, path, json=body, headers={"authorization": f"Bearer {who}"})


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    async with assembled(keys=KEYS) as assembly, httpx.AsyncClient(base_url=assembly.server.url, timeout=60) as http:
        world = World(assembly, http, "", "")
        store = (await world.ask("ann", "POST", "/v1/vector_stores", {"name": "safe"})).json()["id"]
        file = await world.ask("ann", "POST", f"/v1/vector_stores/{store}/files", {"text": SECRET})
        world = World(assembly, http, store, file.json()["id"])
        async with asyncio.timeout(60):
            path = f"/v1/vector_stores/{store}/files/{world.file}"
            while (await world.ask("ann", "GET", path)).json()["status"] != "completed":
                await asyncio.wait((asyncio.ensure_future(asyncio.Event().wait()),), timeout=0.02)
        yield world


@pytest.mark.parametrize("who", ["bob", "eve"])
async def test_a_strangers_store_is_like_none_at_all(who: str) -> None:
    async with a_world() as world:
        base, search = f"/v1/vector_stores/{world.store}", {"query": "combination nightingale"}
        for method, path, body in (
            ("GET", "", None),
            ("POST", "", {"name": "mine"}),
            ("DELETE", "", None),
            ("POST", "/search", search),
            ("POST", "/files", {"text": "Forget what stood here."}),
            ("GET", "/files", None),
            ("GET", f"/files/{world.file}", None),
            ("GET", f"/files/{world.file}/content", None),
            ("POST", f"/files/{world.file}", {"attributes": {"a": 1}}),
            ("DELETE", f"/files/{world.file}", None),
            ("POST", "/file_batches", {"files": [{"text": "x"}]}),
            ("GET", "/file_batches/vsfb_x", None),
            ("POST", "/file_batches/vsfb_x/cancel", None),
            ("GET", "/file_batches/vsfb_x/files", None),
        ):
            refused = await world.ask(who, method, base + path, body)
            never = await world.ask(who, method, "/v1/vector_stores/vs_never" + path, body)
            assert refused.status_code == never.status_code == 404, (method, path, refused.text)
            assert refused.text.replace(world.store, "vs_never") == never.text and "nightingale" not in refused.text
        assert (await world.ask(who, "GET", "/v1/vector_stores")).json()["data"] == []
        found = (await world.ask("ann", "POST", f"{base}/search", search)).json()
        assert found["data"][0]["content"][0]["text"] == SECRET and found["data"][0]["attributes"] == {}
        assert (await world.ask("acme", "GET", base)).status_code == 200  # its tenant's own service


async def test_a_store_of_ones_own_finds_nothing_of_others_whatever_is_asked() -> None:
    async with a_world() as world:
        own = (await world.ask("eve", "POST", "/v1/vector_stores", {})).json()["id"]
        for query in (
            "combination nightingale",
            SECRET,
            "' OR 1=1 --",
            'store : s1 AND body : "x"',
            "* NEAR(a b)",
            '"',
        ):
            for only in (
                None,
                {"type": "ne", "key": "x", "value": "y"},
                {"type": "eq", "key": "' OR '1", "value": "1"},
            ):
                body = {"query": query, **({} if only is None else {"filters": only})}
                found = await world.ask("eve", "POST", f"/v1/vector_stores/{own}/search", body)
                assert found.status_code == 200 and found.json()["data"] == [], (query, found.text)


async def test_an_erased_user_leaves_nothing_behind() -> None:
    async with a_world() as world:
        erased = await world.ask("acme", "POST", "/v1/users/ann/erase")
        assert erased.status_code in (200, 202, 403), erased.text
        if erased.status_code == 403:  # a service does not erase; whoever does, this is what is called
            retrieval = world.assembly.gateway.retrieval
            assert retrieval is not None and retrieval.vector_stores is not None
            assert await retrieval.vector_stores.passages.forget_user(TenantId("acme"), "ann") == 1
        assert (await world.ask("ann", "GET", f"/v1/vector_stores/{world.store}")).status_code == 404


async def test_no_word_and_no_text_stands_in_the_file_and_what_is_deleted_leaves_no_vector(tmp_path: Path) -> None:
    """Words are keyed hashes whatever the codec; texts are the codec's, which is another test's."""
    path = tmp_path / "passages.db"
    database = SqlitePassages(path)
    await database.open()
    index, acme = SqlPassageIndex(database, PlainCodec()), TenantId("acme")
    store = VectorStore(
        id=StoreId("vs_1"),
        tenant=acme,
        user=None,
        model=MADE_UP.name,
        dimensions=MADE_UP.dimensions,
        created_at=UnixMs(1),
    )
    await index.create(store)
    file = StoreFile(id=DocumentId("f"), store=store.id, tenant=acme, filename="f", created_at=UnixMs(1))
    await index.add_file(file, "x")
    claimed = await index.claim(UnixMs(1), UnixMs(2))
    assert claimed is not None
    vector = vector_of(SECRET)
    assert await index.put_chunks(claimed, [NewChunk("sealed", 0, 1, vector)], last=True, until=UnixMs(3))
    rows = await database.rows("SELECT block FROM words_data")
    assert rows and not any(b"sealed" in bytes(block) for (block,) in rows)
    (before,) = (await database.rows("SELECT vector FROM chunks"))[0]
    assert await index.delete(acme, store.id)
    await database.close()
    assert bytes(before) not in path.read_bytes()
