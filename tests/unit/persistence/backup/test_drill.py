"""A backup is restored beside a journal and held against it: what differs is found, what changed since is no fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from persistence.backup.drill import APPEND_MS_MAX, DrillReport, drill_restore, write_metrics
from persistence.sqlite.library import sqlite3
from sessions.model.errors import BadInput
from sessions.model.types import UnixMs
from tests.support.stores.backups import BackupBed
from tests.support.stores.journals import NOW, a_log, an_append

LATER = APPEND_MS_MAX + 1000


async def a_backup(folder: Path, *, names: tuple[str, ...] = ("s", "t")) -> BackupBed:
    bed = BackupBed(folder)
    async with bed.opened() as (store, shipper):
        for name in names:
            await a_log(store.journal, name, 4)
        await bed.ship(shipper, later_ms=LATER)
    return bed


async def drill(bed: BackupBed) -> DrillReport:
    scratch = bed.folder / f"scratch{bed.ticks.new_id()}"
    scratch.mkdir()
    return await drill_restore(bed.services(), scratch, bed.folder / "data" / "journal.db")


def change(bed: BackupBed, statement: str) -> None:
    connection = sqlite3.connect(bed.folder / "data" / "journal.db", isolation_level=None)
    assert connection.execute(statement).rowcount > 0
    connection.close()


async def test_a_backup_that_is_right_has_every_record(tmp_path: Path) -> None:
    report = await drill(await a_backup(tmp_path))
    assert (report.findings, report.compared, report.changed_since) == ([], 8, 0)
    assert report.taken_at == NOW + LATER and report.seconds > 0


async def test_it_reads_beside_a_server_and_what_came_since_is_no_fault(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path)
    async with bed.opened() as (store, shipper):
        head = await a_log(store.journal, "s", 4)
        await bed.ship(shipper)
        await store.journal.append(an_append(head, 3))
        report = await drill(bed)
    assert (report.findings, report.compared) == ([], 4)


async def test_a_session_deleted_since_is_no_fault(tmp_path: Path) -> None:
    bed = await a_backup(tmp_path)
    change(bed, "DELETE FROM events WHERE session = 's'")
    change(bed, "DELETE FROM heads WHERE session = 's'")
    report = await drill(bed)
    assert (report.findings, report.compared, report.changed_since) == ([], 4, 4)


async def test_what_the_backup_has_otherwise_or_not_at_all_is_found(tmp_path: Path) -> None:
    """Each change is made behind the backup's back, so that the backup is what is wrong."""
    for number, (statement, expected) in enumerate(
        (
            (
                "UPDATE events SET key_id = '', body = zeroblob(9) WHERE session = 's' AND \"offset\" = 2",
                "acme/s: offset 2",
            ),
            ('UPDATE events SET "offset" = 5 WHERE session = \'t\' AND "offset" = 4', "acme/t: offset 5"),
            (
                (
                    "INSERT INTO heads (tenant, session, fence, top, epoch, incarnation, owner, key_id, about,"
                    " created_at, updated_at) SELECT tenant, 'u', 1, 0, epoch, incarnation, '', key_id, about, 1, 1"
                    " FROM heads WHERE session = 's'"
                ),
                "acme/u: the backup does not have it",
            ),
        )
    ):
        bed = await a_backup(tmp_path / str(number))
        change(bed, statement)
        (finding,) = (await drill(bed)).findings
        assert finding.startswith(expected)


async def test_records_older_than_the_backup_that_it_lacks_are_found(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path)
    async with bed.opened() as (store, shipper):
        head = await a_log(store.journal, "s", 4)
        await bed.ship(shipper, later_ms=LATER)
        await store.journal.append(an_append(head, 3))  # it says that it began at NOW
    (finding,) = (await drill(bed)).findings
    assert finding == "acme/s: offset 5 and what follows is not in the backup"


async def test_without_a_journal_the_backup_is_restored_and_read(tmp_path: Path) -> None:
    bed = await a_backup(tmp_path)
    (tmp_path / "scratch").mkdir()
    report = await drill_restore(bed.services(), tmp_path / "scratch", None)
    assert (report.findings, report.compared, report.restored.records) == ([], 0, 8)


async def test_an_address_without_a_backup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        await drill_restore(BackupBed(tmp_path).services(), tmp_path, None)


async def test_metrics_are_what_prometheus_reads(tmp_path: Path) -> None:
    report = await drill(await a_backup(tmp_path))
    path = tmp_path / "backup.prom"
    path.write_text("older")
    write_metrics(path, report, UnixMs(NOW))
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }
    assert samples["sessile_backup_verified_timestamp_seconds"] == NOW / 1000
    assert samples["sessile_backup_verified_state_timestamp_seconds"] == report.taken_at / 1000
    assert samples["sessile_backup_verified_records"] == 8 and samples["sessile_backup_verified_findings"] == 0
    assert not list(tmp_path.glob("*.part"))
