"""Documents whose uploaded files are gone leave the vector stores."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sessions.model.errors import Unavailable
from sessions.model.types import TenantId, UnixMs
from sessions.retrieval import deleted_uploads
from sessions.retrieval.deleted_uploads import remove_deleted_uploads, sweep_deleted_uploads
from sessions.retrieval.vector_stores import DocumentId, StoreFile, StoreId, VectorStore
from tests.support.engines.made_up_embedder import MADE_UP, made_up_retrieval

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
            made = VectorStore(
                id=StoreId(store),
                tenant=TenantId(tenant),
                user=None,
                model=MADE_UP.name,
                dimensions=MADE_UP.dimensions,
                created_at=NOW,
            )
            await index.create(made)
            for name in names:
                file = StoreFile(id=DocumentId(name), store=made.id, tenant=made.tenant, filename="f", created_at=NOW)
                await index.add_file(file, "A text.")

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
        store = VectorStore(
            id=StoreId("vs_1"), tenant=TenantId("acme"), user=None, model="m", dimensions=8, created_at=NOW
        )
        await index.create(store)
        file = StoreFile(id=DocumentId("file-1"), store=store.id, tenant=store.tenant, filename="f", created_at=NOW)
        await index.add_file(file, "A text.")
        files: Any = Files()
        files.away = True
        sweeping = asyncio.create_task(sweep_deleted_uploads(index, files, lambda: NOW, every_s=0.001))
        async with asyncio.timeout(60):
            await files.looked.wait()
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        assert not files.away
