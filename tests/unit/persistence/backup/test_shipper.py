"""What is shipped is what a restore has: rows of every table, at each time, whatever ended the shipper."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.backup.shipper import ShippingTimes, shipping, stop_noting
from persistence.objects.folder import FolderObjects
from persistence.objects.object_store import objects_unavailable
from persistence.sqlite.transaction import STORE_KEY
from persistence.write_batch import JobWrite
from sessions.model.errors import BadInput, Unavailable
from sessions.model.journal_types import Due
from sessions.model.memories import MemoryId, UserMemory
from sessions.model.types import INTEGER_MAX, UnixMs
from tests.support.stores.backups import BackupBed, content, rows
from tests.support.stores.journals import ACME, NOW, a_command, a_log, a_usage, an_append, key, patch, purge


class FailingObjects(FolderObjects):
    """Refuses what begins with `away`; `keeps`: says that it keeps versions."""

    away: str | None = None
    keeps = False

    async def put(self, name: str, data: bytes) -> bool:
        if self.away is not None and name.startswith(self.away):
            raise objects_unavailable(ConnectionError())
        await super().put(name, data)
        return self.keeps


async def test_a_restore_has_what_was_shipped(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path)
    async with bed.opened() as (store, shipper):
        head = await a_log(store.journal, "early", 3, head=patch(title="Title", user="ana"))
        await bed.ship(shipper)
        await a_log(store.journal, "late", 2, usage=(a_usage("r1"),), commands=(a_command(1),))
        await store.journal.append(an_append(head, 2))
        await store.end_users.add_memory(
            UserMemory(id=MemoryId("m"), tenant=ACME, user="ana", text="Tea.", created_at=NOW, updated_at=NOW)
        )
        await bed.ship(shipper)
        expected = await content(store)
    report = await bed.restore("restored")
    assert report.problems == () and (report.sessions, report.records) == (2, 7)
    async with bed.restored("restored") as again:
        assert await content(again) == expected
        assert [memory.text for memory in await again.end_users.memories(ACME, "ana")] == ["Tea."]
        assert await again.journal.find_command(key("late"), "k1", a_command(1).command_id) is not None
    assert rows(tmp_path / "restored", "SELECT response, cost FROM usage") == [("r1", 0)]
    assert (await bed.verify()).findings == []


async def test_a_restore_is_of_its_time(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path)
    times = []
    async with bed.opened() as (store, shipper):
        head = await a_log(store.journal, "s", 1)
        for count in range(1, 5):
            await bed.ship(shipper)
            times.append((bed.ticks.now, count))
            if count < 4:
                await store.journal.append(an_append(head, 1))
                (head,) = await store.journal.list_heads(ACME, user=None, limit=1, after=None)
    for at, count in times:
        report = await bed.restore(f"at{at}", at + 500)
        assert (report.records, report.taken_at) == (count, at)
    with pytest.raises(BadInput) as error:
        await bed.restore("before", times[0][0] - 1)
    assert error.value.code == "backup_too_new"
    with pytest.raises(BadInput) as error:
        await bed.restore(f"at{times[0][0]}")
    assert error.value.code == "journal_exists"


async def test_the_chain_goes_on_after_an_end_at_any_moment(tmp_path: Path) -> None:
    objects = FailingObjects(tmp_path / "objects")
    bed = BackupBed(tmp_path, objects)
    async with bed.opened() as (store, shipper):
        await a_log(store.journal, "one", 2)
        await bed.ship(shipper)
        chain, number = shipper.state.chain, shipper.state.number
        await a_log(store.journal, "two", 2)
        objects.away = "journal/"
        with pytest.raises(Unavailable):
            await bed.ship(shipper)
        objects.away = None
    async with bed.opened() as (store, shipper):  # nothing was remembered of the last round
        assert (shipper.state.chain, shipper.state.number) == (chain, number)
        await bed.ship(shipper)
        stored = shipper.state
        await a_log(store.journal, "three", 2)
        await store.database.submit(_forget(stored.number - 1))  # the end came before the segment was remembered
        expected = await content(store)
    async with bed.opened() as (store, shipper):
        assert shipper.state.number == stored.number and shipper.state.hash == stored.hash
        await bed.ship(shipper)
    assert (await bed.verify()).findings == []
    assert (await bed.restore("restored")).problems == ()
    async with bed.restored("restored") as again:
        assert await content(again) == expected


def _forget(number: int) -> JobWrite:
    return JobWrite(
        STORE_KEY, lambda connection: connection.execute("UPDATE backup_state SET number = ?", (number,)).rowcount
    )


async def test_a_restored_journal_begins_a_chain_of_its_own(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path)
    async with bed.opened() as (store, shipper):
        await a_log(store.journal, "s", 2)
        await bed.ship(shipper)
        chain = shipper.state.chain
    await bed.restore("data2")
    (tmp_path / "data").rename(tmp_path / "old")
    (tmp_path / "data2").rename(tmp_path / "data")
    async with bed.opened() as (store, shipper):
        assert shipper.state.chain != chain
        await a_log(store.journal, "since", 1)
        await bed.ship(shipper)
    report = await bed.restore("again")
    assert (report.sessions, report.records) == (2, 3) and (await bed.verify()).findings == []


async def test_a_purged_session_is_unreadable_in_every_segment(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path)
    async with bed.opened() as (store, shipper):
        await a_log(store.journal, "kept", 2)
        await a_log(store.journal, "purged", 2, usage=(a_usage("r9"),), head=patch(deleted_at=NOW - 1))
        before = bed.ticks.now + 1000
        await bed.ship(shipper)
        due = Due(deleted_before=UnixMs(NOW))
        assert await purge(store.journal, due, commands_before=UnixMs(0), limit=9) == [key("purged")]
        await bed.ship(shipper)
    for name, at in (("then", before), ("now", None)):
        report = await bed.restore(name, at)
        assert (report.sessions, report.destroyed > 0, report.problems) == (1, True, ())
        assert rows(tmp_path / name, "SELECT session FROM heads WHERE tenant <> ''") == [("kept",)]
    assert rows(tmp_path / "now", "SELECT response FROM usage") == [("r9",)], "what it cost outlives it"
    verified = await bed.verify()
    assert verified.findings == [] and verified.destroyed > 0


async def test_segments_that_no_restore_needs_are_pruned(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path, times=ShippingTimes(base_s=10.0, keep_s=30.0))
    async with bed.opened() as (store, shipper):
        head = await a_log(store.journal, "s", 1)
        for _ in range(60):
            await bed.ship(shipper, later_ms=2000)
            await store.journal.append(an_append(head, 1))
            (head,) = await store.journal.list_heads(ACME, user=None, limit=1, after=None)
        await shipper.prune()
    report = await bed.verify()
    assert report.findings == [] and 15 <= report.chains[0].segments <= 30
    first = report.chains[0].from_
    assert first is not None and (await bed.restore("first", first)).problems == ()
    assert (await bed.restore("last")).problems == ()


async def test_a_bucket_that_keeps_versions_is_refused(tmp_path: Path) -> None:
    objects = FailingObjects(tmp_path / "objects")
    objects.keeps = True
    with pytest.raises(BadInput) as error:
        async with BackupBed(tmp_path, objects).opened():
            raise AssertionError("it was opened")
    assert error.value.code == "backup_keeps_versions"


async def test_what_is_left_is_shipped_at_the_end(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path, times=ShippingTimes(interval_s=3600))
    async with bed.opened() as (store, shipper):
        shipper.close_files()
        async with shipping(bed.shipper(store)):
            await a_log(store.journal, "s", 4)
    assert (await bed.restore("restored")).records == 4


async def test_without_a_backup_nothing_is_noted(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path)
    async with bed.opened() as (store, _):
        await a_log(store.journal, "s", 1)
        await stop_noting(store.database)
        await a_log(store.journal, "t", 1)
        await purge(store.journal, Due(deleted_before=UnixMs(INTEGER_MAX)), commands_before=UnixMs(0), limit=9)
    names = rows(tmp_path / "data", "SELECT name FROM sqlite_schema WHERE name LIKE 'backup%'")
    assert names == []
