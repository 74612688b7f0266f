"""Sessions move to an object and back: the same log, whoever touches it, whatever ends in between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from persistence.archive.cold_sessions import ColdSessions
from persistence.objects.folder import FolderObjects
from persistence.objects.object_store import objects_unavailable
from sessions.model.errors import Internal, Unavailable
from sessions.model.journal_types import Due, Snapshot
from sessions.model.types import UnixMs
from tests.support.stores.archives import LATER, log_of, opened
from tests.support.stores.backups import BackupBed, rows
from tests.support.stores.journals import NOW, a_log, an_append, grant, key, patch, purge


class LostObjects(FolderObjects):
    async def put(self, name: str, data: bytes) -> bool:
        raise objects_unavailable(ConnectionError())


@pytest.fixture
def objects(tmp_path: Path) -> FolderObjects:
    return FolderObjects(tmp_path / "objects")


async def test_the_first_touch_brings_a_session_back(tmp_path: Path, objects: FolderObjects) -> None:
    async with opened(tmp_path / "data", objects) as (store, cold):
        for name in ("read", "loaded", "tail"):
            await a_log(store.journal, name, 5, snapshot=Snapshot(3, b"folded"), head=patch(title=name))
        before = {name: await store.journal.load(key(name), now_ms=NOW) for name in ("read", "loaded", "tail")}
        log = await log_of(store.journal, key("read"))
        for name in before:
            assert await cold.archive(key(name)) == 5
        assert rows(tmp_path / "data", "SELECT count(*) FROM events") == [(0,)]
        assert rows(tmp_path / "data", "SELECT count(*) FROM snapshots") == [(0,)]
        head = await store.journal.head(key("read"))
        assert head is not None and (head.title, head.top) == ("read", 5), "the stub lists as before"
        assert rows(tmp_path / "data", "SELECT count(*) FROM archived WHERE recalled_at IS NULL") == [(3,)]
        assert await log_of(store.journal, key("read")) == log
        assert await store.journal.load(key("loaded"), now_ms=NOW) == before["loaded"]
        page = await store.journal.read(key("tail"), after=4, limit=9, bytes_max=10**6)
        assert page is not None and [record.offset for record in page.records] == [5]
        assert cold.num_recalled == 3


async def test_many_who_come_at_once_wait_for_one(tmp_path: Path, objects: FolderObjects) -> None:
    async with opened(tmp_path / "data", objects) as (store, cold):
        await a_log(store.journal, "s", 9)
        log = await log_of(store.journal, key("s"))
        await cold.archive(key("s"))
        assert await asyncio.gather(*(log_of(store.journal, key("s")) for _ in range(20))) == [log] * 20
        assert cold.num_recalled == 1


async def test_an_actor_appends_behind_what_is_away(tmp_path: Path, objects: FolderObjects) -> None:
    async with opened(tmp_path / "data", objects) as (store, cold):
        head = await a_log(store.journal, "s", 4)
        await cold.archive(key("s"))
        await store.journal.append(an_append(head, 2))
        assert [record.offset for record in await log_of(store.journal, key("s"))] == [1, 2, 3, 4, 5, 6]
        assert await cold.archive(key("s")) == 6, "another object takes the place of the first"
        assert len(await log_of(store.journal, key("s"))) == 6
        names = [name async for name in objects.names("archive")]
        assert len(names) == 2
        await cold.sweep(UnixMs(LATER + 1))
        assert len([name async for name in objects.names("archive")]) == 1
        assert len(await log_of(store.journal, key("s"))) == 6


async def test_an_unchanged_session_is_not_stored_twice(tmp_path: Path, objects: FolderObjects) -> None:
    async with opened(tmp_path / "data", objects) as (store, cold):
        await a_log(store.journal, "s", 4)
        for _ in range(3):
            assert await cold.archive(key("s")) == 4
            assert len(await log_of(store.journal, key("s"))) == 4
        assert len([name async for name in objects.names("archive")]) == 1


async def test_what_is_in_use_stays(tmp_path: Path, objects: FolderObjects) -> None:
    async with opened(tmp_path / "data", objects) as (store, cold):
        await a_log(store.journal, "open", 3, head=patch(open=True))
        await a_log(store.journal, "deleted", 3, head=patch(deleted_at=NOW))
        await grant(store.journal, key("empty"))
        for name in ("open", "deleted", "empty", "none"):
            assert await cold.archive(key(name)) == 0
        assert rows(tmp_path / "data", "SELECT count(*) FROM archived") == [(0,)]


async def test_a_purge_takes_the_key_at_once_and_the_object_soon(tmp_path: Path, objects: FolderObjects) -> None:
    async with opened(tmp_path / "data", objects) as (store, cold):
        head = await a_log(store.journal, "s", 4)
        await cold.archive(key("s"))
        await store.journal.append(an_append(head, head=patch(deleted_at=NOW - 5)))
        due = Due(deleted_before=UnixMs(NOW))
        assert await purge(store.journal, due, commands_before=UnixMs(0), limit=9) == [key("s")]
        assert rows(tmp_path / "data", "SELECT length(sealed) FROM archived") == [(0,)]
        assert not await cold.recall(key("s"))
        assert await cold.sweep(UnixMs(0)) == 1
        assert [name async for name in objects.names("archive")] == []
        assert rows(tmp_path / "data", "SELECT count(*) FROM archived") == [(0,)]


async def test_damage_and_loss_are_errors_and_never_another_log(tmp_path: Path, objects: FolderObjects) -> None:
    async with opened(tmp_path / "data", objects) as (store, cold):
        await a_log(store.journal, "s", 4)
        await cold.archive(key("s"))
        (name,) = [name async for name in objects.names("archive")]
        whole = await objects.get(name)
        assert whole is not None
        for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:20], b""):
            await objects.put(name, damaged)
            with pytest.raises(Internal) as error:
                await log_of(store.journal, key("s"))
            assert error.value.code == "archive_damaged"
        await objects.delete([name])
        with pytest.raises(Internal) as error:
            await log_of(store.journal, key("s"))
        assert error.value.code == "archive_lost"
        await objects.put(name, whole)
        assert len(await log_of(store.journal, key("s"))) == 4


async def test_nothing_leaves_while_the_object_store_is_away(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", LostObjects(tmp_path)) as (store, cold):
        await a_log(store.journal, "s", 4)
        with pytest.raises(Unavailable):
            await cold.archive(key("s"))
        assert len(await log_of(store.journal, key("s"))) == 4


async def test_a_server_without_the_archive_says_what_is_missing(tmp_path: Path, objects: FolderObjects) -> None:
    async with opened(tmp_path / "data", objects) as (store, cold):
        await a_log(store.journal, "s", 4)
        await cold.archive(key("s"))
    async with opened(tmp_path / "data", None) as (store, _):
        with pytest.raises(Unavailable) as error:
            await log_of(store.journal, key("s"))
        assert error.value.code == "archive_missing"


async def test_a_restored_journal_finds_what_is_archived(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path)
    async with bed.opened() as (store, shipper):
        cold = ColdSessions(store.database, bed.objects, now_ms=lambda: LATER)
        head = await a_log(store.journal, "s", 4)
        await a_log(store.journal, "t", 4)
        await bed.ship(shipper)
        await cold.archive(key("s"))
        await store.journal.append(an_append(head, 1))
        await bed.ship(shipper)
    report = await bed.restore("restored")
    assert report.problems == () and report.sessions == 2
    async with opened(tmp_path / "restored", bed.objects) as (store, cold):
        assert len(await log_of(store.journal, key("s"))) == 5
        assert len(await log_of(store.journal, key("t"))) == 4 and cold.num_recalled == 1
