"""The index beside its contract (`tests/contract/store/test_passages.py`): bounds, and what is sealed."""

from __future__ import annotations

import pytest

from persistence.codec import KeyNotLoaded, PlainCodec, Row
from persistence.passages import index as module
from persistence.passages.databases import SqlitePassages
from persistence.passages.index import SqlPassageIndex
from sessions.model.errors import Limited
from sessions.model.types import SessionKey, TenantId, UnixMs
from sessions.retrieval.vector_stores import DocumentId, NewChunk, StoreFile, StoreId, VectorStore

ACME = TenantId("acme")
STORE = VectorStore(
    id=StoreId("vs_1"), tenant=ACME, user=None, model="m", dimensions=8, created_at=UnixMs(1), name="a secret name"
)
VECTOR = b"\x00\x00\x80\x3f" * 8


def a_file(name: str = "f1") -> StoreFile:
    return StoreFile(id=DocumentId(name), store=STORE.id, tenant=ACME, filename="secret.md", created_at=UnixMs(1))


class Reversing(PlainCodec):
    """Stands in for encryption, with a key that has to be loaded first; each row opens as itself alone."""

    def __init__(self) -> None:
        self.loaded = False

    def encode(self, key: SessionKey, row: Row, plain: bytes) -> tuple[str, bytes]:
        if not self.loaded:
            raise KeyNotLoaded(key.tenant, "")
        return "k", f"{key.tenant} {row}|".encode() + plain[::-1]

    def decode(self, key: SessionKey, row: Row, key_id: str, stored: bytes) -> bytes:
        name, _, body = stored.partition(b"|")
        assert (key_id, name) == ("k", f"{key.tenant} {row}".encode())
        return body[::-1]

    async def load(self, tenant: TenantId, key_id: str) -> None:
        self.loaded = True


async def test_texts_and_names_are_sealed_row_by_row() -> None:
    database = SqlitePassages(None)
    await database.open()
    index = SqlPassageIndex(database, Reversing())
    await index.create(STORE)
    await index.add_file(a_file(), "the secret text")
    claimed = await index.claim(UnixMs(5), UnixMs(9))
    assert claimed is not None
    assert await index.put_chunks(claimed, [NewChunk("the secret text", 0, 15, VECTOR)], last=True, until=UnixMs(9))
    rows = [
        *await database.rows("SELECT body FROM stores"),
        *await database.rows("SELECT body FROM files"),
        *await database.rows("SELECT text FROM files"),
        *await database.rows("SELECT body FROM chunks"),
    ]
    assert len(rows) == 4 and not any(b"secret" in bytes(body) for (body,) in rows)
    ((number, _),) = await index.nearest(ACME, STORE.id, VECTOR, None, 5)
    (passage,) = await index.passages(ACME, STORE.id, [number])
    assert (passage.text, passage.filename) == ("the secret text", "secret.md")
    assert await index.text(ACME, STORE.id, DocumentId("f1")) == "the secret text"
    assert (await index.stores(ACME, None, anybody=True))[0].name == "a secret name"
    await database.close()


async def test_bounds_of_stores_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STORES_MAX", 1)
    monkeypatch.setattr(module, "FILES_MAX", 1)
    database = SqlitePassages(None)
    await database.open()
    index = SqlPassageIndex(database, PlainCodec())
    await index.create(STORE)
    with pytest.raises(Limited, match="vector stores"):
        await index.create(VectorStore(**{**{n: getattr(STORE, n) for n in STORE.__struct_fields__}, "id": "vs_2"}))
    await index.add_file(a_file(), "x")
    with pytest.raises(Limited, match="files"):
        await index.add_file(a_file("f2"), "x")
    assert await index.nearest(ACME, STORE.id, VECTOR, None, 5) == []
    await database.close()
