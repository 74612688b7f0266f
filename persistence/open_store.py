"""Opens the store and the key store that the settings name, by URL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from persistence.keys import MemoryKeyStore, PostgresKeyStore, SqliteKeyStore
from persistence.master_key import read_master_key, read_secret
from persistence.memory.store import MemoryStore
from persistence.postgres.database import PostgresDatabase
from persistence.postgres.store import PostgresStore
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.store import SqliteStore
from sessions.model.errors import BadInput
from sessions.store import Store

KeyStore = MemoryKeyStore | SqliteKeyStore | PostgresKeyStore


def open_store(url: str, *, folder: Path | None, audit_key: str = "") -> Store:
    """`sqlite` (in `folder`), `memory`, or `postgresql://...`. Raises BadInput for anything else.

    Only makes it: `open` is the caller's, and so is `close`. `folder` belongs to one process. With PostgreSQL it holds
    the marker that tells a restored database from the one that this process wrote to; None goes without, which is right
    for a process that only reads. `audit_key` names a file like the master key's.
    """
    sealed = read_secret(Path(audit_key), "audit_key") if audit_key else None
    match url.partition("://"):
        case ("sqlite", "", _) if folder is not None:
            return SqliteStore(SqliteDatabase(folder, audit_key=sealed))
        case ("memory", "", _):
            return MemoryStore()
        case ("postgresql" | "postgres", _, address) if address:
            return PostgresStore(PostgresDatabase(url, marker_folder=folder, audit_key=sealed))
        case _:
            raise BadInput(
                "unknown_journal", "The journal is `sqlite`, `memory` or `postgresql://...`.", param="journal"
            )


class StoreSettings(Protocol):
    @property
    def journal(self) -> str: ...
    @property
    def data(self) -> str: ...
    @property
    def audit_key(self) -> str: ...


@asynccontextmanager
async def connect_store(settings: StoreSettings) -> AsyncIterator[Store]:
    """The opened store of the settings, for a command: with SQLite no server may have it open."""
    folder = Path(settings.data) if settings.journal == "sqlite" else None
    store = open_store(settings.journal, folder=folder, audit_key=settings.audit_key)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def open_key_store(url: str, *, folder: Path, master_key: str) -> KeyStore:
    """The key store that goes with a store: in memory, a file in `folder`, or a schema of its own in PostgreSQL.

    `master_key` names a file; "" is `master.key` in `folder`, made at the first start. Replicas that are to read each
    other's KV are given the same one. Raises BadInput. Blocking."""
    if url == "memory":
        return MemoryKeyStore()
    master = read_master_key(Path(master_key) if master_key else folder / "master.key", make=not master_key)
    if url == "sqlite":
        return SqliteKeyStore(folder / "keys.db", master)
    return PostgresKeyStore(url, master)
