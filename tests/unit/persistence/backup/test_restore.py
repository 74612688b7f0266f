"""What a restored journal is: another incarnation, without what was destroyed; and one session alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.backup.restore import restore_session
from sessions.governance.end_user_data import Erasure
from sessions.model.audit import Audited
from sessions.model.errors import BadInput, Fenced, Internal
from sessions.model.journal_types import Due, is_restored
from sessions.model.memories import MemoryId, UserMemory
from sessions.model.types import INTEGER_MAX, UnixMs
from tests.support.stores.backups import BackupBed, rows
from tests.support.stores.journals import ACME, NOW, a_log, a_usage, an_append, grant, key, patch, purge


async def test_fences_and_epochs_of_before_are_no_good(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path)
    async with bed.opened() as (store, shipper):
        head = await a_log(store.journal, "s", 2)
        await bed.ship(shipper)
        incarnation = store.journal.incarnation
    await bed.restore("restored")
    async with bed.restored("restored") as store:
        assert store.journal.incarnation != incarnation
        again = await store.journal.head(head.key)
        assert again is not None and is_restored(again.epoch) and again.top == 2
        with pytest.raises(Fenced):
            await store.journal.append(an_append(head, 1))
        granted = await grant(store.journal, head.key, again.fence, epoch="new")
        assert granted.epoch == again.epoch, "readers see one reset, not two"
        await store.journal.append(an_append(granted, 1))


async def test_an_erased_user_is_in_no_restore(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path)
    erasure = Erasure(tenant=ACME, user="ana", asked_at=UnixMs(NOW), asked_by="boss")
    memory = UserMemory(id=MemoryId("m"), tenant=ACME, user="ana", text="secret", created_at=NOW, updated_at=NOW)
    async with bed.opened() as (store, shipper):
        await a_log(store.journal, "hers", 2, head=patch(user="ana"), usage=(a_usage("r1"),))
        await a_log(store.journal, "his", 2, head=patch(user="bob"))
        await store.end_users.add_memory(memory)
        await bed.ship(shipper)
        before = bed.ticks.now
        await store.end_users.request_erasure(erasure, Audited(action="user.erasure_asked", at=NOW, user="ana"))
        await store.journal.append(
            an_append((await store.journal.head(key("hers"))), head=patch(user="ana", deleted_at=NOW))  # type: ignore[arg-type]
        )
        due = Due(deleted_before=UnixMs(INTEGER_MAX), tenant=ACME, user="ana")
        await purge(store.journal, due, commands_before=UnixMs(0), limit=9)
        await bed.ship(shipper)
        await store.end_users.finish(erasure, Audited(action="user.erased", at=NOW, user="ana"))
        await bed.ship(shipper)
    for name, at in (("before", before), ("after", None)):
        report = await bed.restore(name, at)
        assert report.problems == () and report.destroyed > 0
        assert rows(tmp_path / name, "SELECT session FROM heads WHERE tenant <> ''") == [("his",)]
        assert rows(tmp_path / name, "SELECT * FROM memories") == []
        everything = (tmp_path / name / "journal.db").read_bytes()
        assert b"ana" not in everything
    assert len(rows(tmp_path / "after", "SELECT * FROM usage")) == 1
    assert len(rows(tmp_path / "after", "SELECT * FROM erasures WHERE done_at IS NOT NULL")) == 1


async def test_destroyed_keys_of_a_tenant_stay_destroyed(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path)
    async with bed.opened() as (store, shipper):
        await a_log(store.journal, "s", 2)
        await a_log(store.journal, "s", 2, tenant="beta")
        await bed.ship(shipper)
        assert bed.codec is not None
        await bed.codec.keys.destroy(ACME)
        await bed.ship(shipper)
    report = await bed.restore("restored")
    assert report.problems == () and report.sessions == 1
    async with bed.restored("restored") as store:
        assert await store.journal.head(key("s", "beta")) is not None
        assert await store.journal.head(key("s")) is None


async def test_another_master_key_opens_nothing(tmp_path: Path) -> None:
    from persistence.at_rest.wrapping import MasterKeyWrapper
    from persistence.backup.restore import RestoreServices, restore_journal
    from persistence.master_key import MasterKey, MasterKeyRing

    bed = BackupBed(tmp_path)
    async with bed.opened() as (store, shipper):
        await a_log(store.journal, "s", 2)
        await bed.ship(shipper)
    services = RestoreServices(
        objects=bed.objects,
        wrapper=MasterKeyWrapper(MasterKeyRing([MasterKey(b"x" * 32)])),
        now_ms=bed.ticks,
        new_id=bed.ticks.new_id,
    )
    with pytest.raises(BadInput) as error:
        await restore_journal(services, tmp_path / "restored", at=None)
    assert error.value.code == "backup_locked"


async def test_one_session_is_brought_back(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path)
    async with bed.opened() as (store, shipper):
        first = await a_log(store.journal, "s", 2, head=patch(title="Before"))
        await a_log(store.journal, "other", 2)
        await bed.ship(shipper)
        before = bed.ticks.now
        await store.journal.append(an_append(first, 3, head=patch(title="Since", deleted_at=NOW)))
        await bed.ship(shipper)
        assert bed.keys is not None
        report = await restore_session(bed.services(), store.database, bed.keys, key("s"), at=UnixMs(before))
        assert (report.sessions, report.records, report.problems) == (1, 2, ())
        head = await store.journal.head(key("s"))
        assert head is not None and (head.title, head.top, head.deleted_at) == ("Before", 2, None)
        assert is_restored(head.epoch)
        with pytest.raises(Fenced):
            await store.journal.append(an_append(first, 1))
        granted = await grant(store.journal, key("s"), head.fence)
        await store.journal.append(an_append(granted, 1))
        with pytest.raises(BadInput) as error:
            await restore_session(bed.services(), store.database, bed.keys, key("never"), at=None)
        assert error.value.code == "session_not_in_backup"
        await bed.ship(shipper)
    await bed.restore("restored")
    async with bed.restored("restored") as again:
        head = await again.journal.head(key("s"))
        assert head is not None and head.top == 3
        page = await again.journal.read(key("s"), after=0, limit=9, bytes_max=10**6)
        assert page is not None and len(page.records) == 3


async def test_a_record_that_does_not_open_is_reported(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path)
    async with bed.opened() as (store, shipper):
        await a_log(store.journal, "s", 2)

        def swap(connection: object) -> None:
            connection.execute('UPDATE events SET body = zeroblob(40) WHERE "offset" = 2')  # type: ignore[attr-defined]

        from persistence.sqlite.transaction import STORE_KEY
        from persistence.write_batch import JobWrite

        await store.database.submit(JobWrite(STORE_KEY, swap))
        with pytest.raises(Internal):
            await store.journal.read(key("s"), after=0, limit=9, bytes_max=10**6)
        await bed.ship(shipper)
    report = await bed.restore("restored")
    assert len(report.problems) == 1 and "offset 2" in report.problems[0]
