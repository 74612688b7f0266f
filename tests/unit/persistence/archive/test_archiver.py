"""Which sessions are moved, and that the file shrinks."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.archive.archiver import Archiver, ArchiveTimes
from persistence.key_database import SqliteKeyDatabase
from persistence.objects.folder import FolderObjects
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.store import SqliteStore
from tests.support.stores.archives import LATER, log_of, opened
from tests.support.stores.backups import rows
from tests.support.stores.journals import NOW, a_codec, a_log, key


@pytest.fixture
def objects(tmp_path: Path) -> FolderObjects:
    return FolderObjects(tmp_path / "objects")


async def test_the_archiver_moves_what_is_cold_and_the_file_shrinks(tmp_path: Path, objects: FolderObjects) -> None:
    async with opened(tmp_path / "data", objects) as (store, cold):
        for number in range(30):
            await a_log(store.journal, f"s{number:02}", 300)
        archiver = Archiver(store.database, cold, ArchiveTimes(cold_s=500.0), now_ms=lambda: LATER)
        await store.database.give_back(0)
        size = rows(tmp_path / "data", "PRAGMA page_count")[0][0]
        assert await archiver.sweep() == 30
        assert rows(tmp_path / "data", "PRAGMA page_count")[0][0] < size / 5
        assert len(await log_of(store.journal, key("s07"))) == 300
        assert await archiver.sweep() == 0, "what was used just now is not cold"
        young = Archiver(store.database, cold, ArchiveTimes(cold_s=5000.0), now_ms=lambda: LATER)
        assert await young.sweep() == 0


async def test_a_file_that_was_made_without_gives_its_space_back_as_well(
    tmp_path: Path, objects: FolderObjects
) -> None:
    keys = SqliteKeyDatabase(tmp_path / "data" / "keys.db")
    old = SqliteStore(SqliteDatabase(tmp_path / "data", codec=await a_codec(keys)))
    await old.open()
    await a_log(old.journal, "s", 2000)
    await old.close()
    await keys.close()
    assert rows(tmp_path / "data", "PRAGMA auto_vacuum") == [(0,)]
    async with opened(tmp_path / "data", objects) as (store, cold):
        assert await cold.archive(key("s")) == 2000
        assert await Archiver(store.database, cold, ArchiveTimes(cold_s=1), now_ms=lambda: NOW).shrink() < 5
        assert rows(tmp_path / "data", "PRAGMA freelist_count") == [(0,)]
