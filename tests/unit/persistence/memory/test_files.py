"""Files in memory; what all stores hold to is in `tests/contract/store/test_files.py`."""

from __future__ import annotations

from persistence.memory.database import MemoryDatabase
from persistence.memory.files import MemoryFiles
from sessions.model.knowledge.files import FileTotals
from sessions.model.types import UnixMs
from tests.support.stores.file_rows import content_of, uploaded
from tests.support.stores.journals import ACME, NOW


async def test_files_come_back_with_a_backup() -> None:
    database = MemoryDatabase()
    files = MemoryFiles(database)
    file = await uploaded(files, b"kept")
    backup = database.backup()
    await files.remove(ACME, file.id, NOW)
    await files.collect(NOW, limit=9)
    assert await files.totals(ACME, "ü") == FileTotals()
    database.restore(backup)
    assert await content_of(files, file) == b"kept"


async def test_what_came_after_an_erasure_was_requested_stays() -> None:
    files = MemoryFiles(MemoryDatabase())
    old, new = await uploaded(files, b"a"), await uploaded(files, b"b", at=NOW + 2)
    files.forget(ACME, "ü", UnixMs(NOW + 1))
    assert await files.find(ACME, old.id, NOW) is None and await files.find(ACME, new.id, NOW) == new
