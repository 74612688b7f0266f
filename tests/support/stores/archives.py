"""A journal whose cold sessions move to an object store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from persistence.archive.cold_sessions import ColdSessions
from persistence.key_database import SqliteKeyDatabase
from persistence.objects.object_store import ObjectStore
from persistence.sqlite.database import SqliteDatabase, SqliteTuning
from persistence.sqlite.store import SqliteStore
from sessions.model.events import Record
from sessions.model.types import SessionKey, UnixMs
from sessions.ports import Journal
from tests.support.stores.journals import NOW, a_codec

LATER = UnixMs(NOW + 1_000_000)


@asynccontextmanager
async def opened(folder: Path, objects: ObjectStore | None) -> AsyncIterator[tuple[SqliteStore, ColdSessions]]:
    keys = SqliteKeyDatabase(folder / "keys.db")
    tuning = SqliteTuning(gives_back=True)
    database = SqliteDatabase(folder, codec=await a_codec(keys), tuning=tuning)
    cold = ColdSessions(database, objects, now_ms=lambda: LATER)
    store = SqliteStore(database, cold)
    await store.open()
    try:
        yield store, cold
    finally:
        await store.close()
        await keys.close()


async def log_of(journal: Journal, at: SessionKey) -> tuple[Record, ...]:
    page = await journal.read(at, after=0, limit=100_000, bytes_max=2**30)
    assert page is not None
    return page.records
