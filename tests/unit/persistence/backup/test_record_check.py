"""Holes, ends and bodies that do not open are found."""

from __future__ import annotations

from pathlib import Path

from persistence.backup.record_check import check_records, load_keys
from persistence.sqlite.library import sqlite3
from tests.support.stores.backups import BackupBed
from tests.support.stores.journals import a_log


async def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    bed = BackupBed(tmp_path)
    path = tmp_path / "data" / "journal.db"
    async with bed.opened() as (store, _):
        for name in ("whole", "hole", "short", "changed"):
            await a_log(store.journal, name, 4)
        assert bed.codec is not None
        await load_keys(path, bed.codec)
        check = check_records(path, bed.codec)
        assert (check.sessions, check.records, check.problems) == (4, 16, ())
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM events WHERE session = 'hole' AND \"offset\" = 2")
    connection.execute("DELETE FROM events WHERE session = 'short' AND \"offset\" = 4")
    connection.execute("UPDATE events SET body = zeroblob(50) WHERE session = 'changed' AND \"offset\" = 1")
    connection.commit()
    connection.close()
    problems = check_records(path, bed.codec).problems
    assert [problem.split(":")[0] for problem in problems] == ["acme/changed", "acme/hole", "acme/short"]
