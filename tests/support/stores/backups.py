"""A journal in SQLite with a backup beside it, and what the tests of backups compare."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from persistence.at_rest.codec import SealingCodec
from persistence.at_rest.wrapping import MasterKeyWrapper
from persistence.backup.restore import RestoreReport, RestoreServices, restore_journal
from persistence.backup.shipper import BackupShipper, ShippingTimes
from persistence.backup.verification import VerifyReport, verify_backup
from persistence.key_database import KeyDatabase, SqliteKeyDatabase
from persistence.master_key import MasterKeyRing
from persistence.objects.folder import FolderObjects
from persistence.objects.object_store import ObjectStore
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.library import sqlite3
from persistence.sqlite.store import SqliteStore
from sessions.model.types import UnixMs
from sessions.store import Store
from tests.support.stores.journals import ACME, MASTER, NOW, a_codec


class Ticks:
    """Wall time that a test moves."""

    def __init__(self) -> None:
        self.now = NOW
        self.made = 0

    def __call__(self) -> UnixMs:
        return UnixMs(self.now)

    def new_id(self) -> str:
        self.made += 1
        return f"id{self.made:06}"


class BackupBed:
    """`folder/data` has the journal, `folder/objects` the backup."""

    def __init__(self, folder: Path, objects: ObjectStore | None = None, *, times: ShippingTimes | None = None) -> None:
        self.folder = folder
        self.path = folder / "objects"
        self.objects = objects or FolderObjects(self.path)
        self.times = times
        self.ticks = Ticks()
        self.keys: KeyDatabase | None = None
        self.codec: SealingCodec | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[SqliteStore, BackupShipper]]:
        """The store and its shipper, which ships when it is called for."""
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        self.keys = SqliteKeyDatabase(self.folder / "data" / "keys.db")
        self.codec = await a_codec(self.keys)
        store = SqliteStore(SqliteDatabase(self.folder / "data", codec=self.codec))
        await store.open()
        try:
            shipper = self.shipper(store)
            await shipper.open()
            try:
                yield store, shipper
            finally:
                shipper.close_files()
        finally:
            await store.close()
            await self.keys.close()

    def shipper(self, store: SqliteStore) -> BackupShipper:
        assert self.keys is not None and self.codec is not None
        about = (self.keys, self.codec.keys)
        return BackupShipper(store.database, about, self.objects, now_ms=self.ticks, times=self.times)

    async def ship(self, shipper: BackupShipper, *, later_ms: int = 1000) -> int:
        """Everything there is; the segment that it ends with."""
        self.ticks.now = UnixMs(self.ticks.now + later_ms)
        while await shipper.ship():
            pass
        return shipper.state.number

    def services(self) -> RestoreServices:
        wrapper = MasterKeyWrapper(MasterKeyRing([MASTER]))
        return RestoreServices(objects=self.objects, wrapper=wrapper, now_ms=self.ticks, new_id=self.ticks.new_id)

    async def restore(self, name: str, at: int | None = None) -> RestoreReport:
        return await restore_journal(self.services(), self.folder / name, at=None if at is None else UnixMs(at))

    async def verify(self) -> VerifyReport:
        folder = self.folder / f"verify{self.ticks.new_id()}"
        folder.mkdir(parents=True)
        return await verify_backup(self.services(), folder)

    @asynccontextmanager
    async def restored(self, name: str) -> AsyncIterator[SqliteStore]:
        """The store that a restore has made."""
        keys = SqliteKeyDatabase(self.folder / name / "keys.db")
        store = SqliteStore(SqliteDatabase(self.folder / name, codec=await a_codec(keys)))
        await store.open()
        try:
            yield store
        finally:
            await store.close()
            await keys.close()


async def content(store: Store) -> dict[str, Any]:
    """What every session of ACME says, without what a restore makes anew."""
    found: dict[str, Any] = {}
    for head in await store.journal.list_heads(ACME, user=None, limit=10_000, after=None):
        page = await store.journal.read(head.key, after=0, limit=100_000, bytes_max=2**30)
        assert page is not None
        plain = msgspec.structs.replace(head, epoch="", fence=0, incarnation="", owner="")
        found[head.key.session] = (plain, page.records)
    return found


def rows(folder: Path, statement: str) -> list[Any]:
    connection = sqlite3.connect(folder / "journal.db")
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()
