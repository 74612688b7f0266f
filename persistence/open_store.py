"""Which journal and which key store settings name. Only makes them: `open` is the caller's, and so is `close`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from persistence.api_keys import MemoryApiKeys, PostgresApiKeys, SqliteApiKeys
from persistence.keys import MemoryKeyStore, PostgresKeyStore, SqliteKeyStore
from persistence.master_key import read_master_key, read_secret
from persistence.memory.journal import MemoryJournal
from persistence.postgres.journal import PostgresJournal
from persistence.sqlite.journal import SqliteJournal
from sessions.model.api_keys import ApiKeyStore
from sessions.model.errors import BadInput

AnyJournal = MemoryJournal | SqliteJournal | PostgresJournal
KeyStore = MemoryKeyStore | SqliteKeyStore | PostgresKeyStore


def open_journal(where: str, *, folder: Path | None, audit_key: str = "") -> AnyJournal:
    """`sqlite` (in `folder`), `memory`, or `postgresql://...`. Raises BadInput for anything else.

    `folder` belongs to one process. With PostgreSQL it holds the marker that tells a restored database from the one
    that this process wrote to; None goes without, which is right for a process that only reads. `audit_key` names a
    file like the master key's.
    """
    sealed = read_secret(Path(audit_key), "audit_key") if audit_key else None
    match where.partition("://"):
        case ("sqlite", "", _) if folder is not None:
            return SqliteJournal(folder, audit_key=sealed)
        case ("memory", "", _):
            return MemoryJournal()
        case ("postgresql" | "postgres", _, address) if address:
            return PostgresJournal(where, marker_folder=folder, audit_key=sealed)
        case _:
            raise BadInput(
                "unknown_journal", "The journal is `sqlite`, `memory` or `postgresql://...`.", param="journal"
            )


class JournalSettings(Protocol):
    @property
    def journal(self) -> str: ...
    @property
    def data(self) -> str: ...
    @property
    def audit_key(self) -> str: ...


@asynccontextmanager
async def connect_journal(settings: JournalSettings) -> AsyncIterator[AnyJournal]:
    """The journal of the settings for a command: with SQLite no server may have it open."""
    folder = Path(settings.data) if settings.journal == "sqlite" else None
    journal = open_journal(settings.journal, folder=folder, audit_key=settings.audit_key)
    await journal.open()
    try:
        yield journal
    finally:
        await journal.close()


def api_keys_of(journal: AnyJournal) -> ApiKeyStore:
    """The API keys that lie in a journal's database; good for as long as the journal is open."""
    match journal:
        case SqliteJournal():
            return SqliteApiKeys(journal)
        case PostgresJournal():
            return PostgresApiKeys(journal)
        case MemoryJournal():
            return MemoryApiKeys(journal)
        case _:
            raise BadInput("unknown_journal", "This journal keeps no API keys.", param="journal")


def open_key_store(where: str, *, folder: Path, master_key: str) -> KeyStore:
    """The key store that goes with a journal: in memory, a file in `folder`, or a schema of its own in PostgreSQL.

    `master_key` names a file; "" is `master.key` in `folder`, made at the first start. Replicas that are to read each
    other's KV are given the same one. Raises BadInput. Blocking."""
    if where == "memory":
        return MemoryKeyStore()
    master = read_master_key(Path(master_key) if master_key else folder / "master.key", make=not master_key)
    if where == "sqlite":
        return SqliteKeyStore(folder / "keys.db", master)
    return PostgresKeyStore(where, master)
