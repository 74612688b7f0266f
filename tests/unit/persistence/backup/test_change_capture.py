"""What is taken is what changed, whatever numbers rows get."""

from __future__ import annotations

from pathlib import Path

from persistence.backup import change_capture
from persistence.backup.change_capture import ChangeCapture, Taken
from persistence.backup.row_tables import EVENTS, HEADS, PUT
from persistence.backup.scope_keys import session_scope
from sessions.model.journal_types import Due
from sessions.model.types import UnixMs
from tests.support.stores.backups import BackupBed
from tests.support.stores.journals import ACME, NOW, a_log, an_append, patch, purge


def puts(taken: Taken | None, table: int) -> list[tuple[str, int]]:
    assert taken is not None
    rows = [row for each in taken.rows.values() for row in each]
    return [(values[1], values[2]) for where, what, values in rows if (where, what) == (table, PUT)]


async def test_a_bare_append_is_its_events_alone(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path)
    async with bed.opened() as (store, shipper):
        head = await a_log(store.journal, "s", 2)
        await bed.ship(shipper)
        await store.journal.append(an_append(head, 2))
        capture = ChangeCapture(store.database.path)
        capture.open()
        taken = capture.take()
        assert taken is not None and taken.complete and list(taken.rows) == [session_scope(ACME, "s")]
        assert puts(taken, EVENTS) == [("s", 3), ("s", 4)] and puts(taken, HEADS) == []
        await bed.ship(shipper)
        assert capture.take() is None
        capture.close()


async def test_rows_that_get_the_numbers_of_purged_ones_are_shipped(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path)
    async with bed.opened() as (store, shipper):
        await a_log(store.journal, "kept", 2)
        await a_log(store.journal, "purged", 9, head=patch(deleted_at=NOW - 1))
        await bed.ship(shipper)
        await purge(store.journal, Due(deleted_before=UnixMs(NOW)), commands_before=UnixMs(0), limit=9)
        await a_log(store.journal, "new", 5)
        await bed.ship(shipper)
        await a_log(store.journal, "newer", 5)
        await bed.ship(shipper)
    report = await bed.restore("restored")
    assert (report.sessions, report.records, report.problems) == (3, 12, ())


async def test_a_large_backlog_is_shipped_in_pieces(tmp_path: Path, monkeypatch: object) -> None:
    change_capture_module = change_capture
    assert change_capture_module.EVENTS_MAX > 100
    bed = BackupBed(tmp_path)
    async with bed.opened() as (store, shipper):
        monkeypatch.setattr(change_capture_module, "EVENTS_MAX", 10)  # type: ignore[attr-defined]
        monkeypatch.setattr(change_capture_module, "CHANGES_MAX", 7)  # type: ignore[attr-defined]
        monkeypatch.setattr(change_capture_module, "BASE_ROWS", 5)  # type: ignore[attr-defined]
        for number in range(12):
            await a_log(store.journal, f"s{number:02}", 8)
        assert await bed.ship(shipper) > 9
    report = await bed.restore("restored")
    assert (report.sessions, report.records, report.problems) == (12, 96, ())


async def test_a_base_goes_over_every_row(tmp_path: Path, monkeypatch: object) -> None:
    monkeypatch.setattr(change_capture, "BASE_ROWS", 3)  # type: ignore[attr-defined]
    bed = BackupBed(tmp_path)
    async with bed.opened() as (store, shipper):
        from persistence.backup.shipper import stop_noting

        await stop_noting(store.database)
        for number in range(7):
            await a_log(store.journal, f"s{number:02}", 8)
        shipper.close_files()
        again = bed.shipper(store)
        await again.open()
        await bed.ship(again)
        again.close_files()
    report = await bed.restore("restored")
    assert (report.sessions, report.records, report.problems) == (7, 56, ())
