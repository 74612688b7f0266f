"""Checkpoints: beside the commits where SQLite allows it, the log bounded, and what happens when one fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from persistence.sqlite.checkpoints import CHECK_EVERY, LAST_RESORT, RESTART
from persistence.sqlite.journal import SqliteJournal
from persistence.sqlite.library import CHECKPOINTS_BESIDE_COMMITS
from tests.support.stores.stores import NOW, a_journal, append, grant, key, no_file_may_grow_beyond, opened, top_of

PAGE_BYTES = 4096
FRAME_BYTES = PAGE_BYTES + 24
PAGES = 20

pytestmark = pytest.mark.skipif(not CHECKPOINTS_BESIDE_COMMITS, reason="this machine's SQLite is too old for it")


async def looked(journal: SqliteJournal) -> None:
    """Waits for the look at the log that is under way."""
    assert journal.database._checkpoints is not None
    if journal.database._checkpoints._task is not None:
        await journal.database._checkpoints._task


def size_of(folder: Path, name: str) -> int:
    return (folder / name).stat().st_size


async def test_no_commit_makes_a_checkpoint_and_the_log_stays_short(tmp_path: Path) -> None:
    async with opened(tmp_path, checkpoint_pages=PAGES) as journal:
        head = await grant(journal)
        before = size_of(tmp_path, "journal.db")
        for top in range(CHECK_EVERY * 4):
            await append(journal, head, top, text="x" * 3000)
            await looked(journal)  # the log's file keeps the size that it once had: no commit may run ahead
        assert size_of(tmp_path, "journal.db") > before, "what the log has was copied"
        assert journal.database._writer is not None
        ((own,),) = await journal.database._writer.execute_fetchall("PRAGMA wal_autocheckpoint")
        assert own == LAST_RESORT * PAGES
        for top in range(CHECK_EVERY * 4, 800):
            await append(journal, head, top)
            await looked(journal)
        assert size_of(tmp_path, "journal.db-wal") < (RESTART + 8) * PAGES * FRAME_BYTES, "a log began anew"
    assert not (tmp_path / "journal.db-wal").exists(), "whoever closes last empties it"


async def test_without_them_a_commit_makes_the_checkpoint(tmp_path: Path) -> None:
    async with opened(tmp_path, checkpoint_pages=PAGES, checkpoints_beside=False) as journal:
        head = await grant(journal)
        for top in range(100):
            await append(journal, head, top)
        assert size_of(tmp_path, "journal.db-wal") < 3 * PAGES * FRAME_BYTES
    assert not (tmp_path / "journal.db-wal").exists()


async def test_a_checkpoint_that_fails_costs_no_commit_and_is_made_later(tmp_path: Path) -> None:
    """The file may not grow, the log may: it is the shorter one."""
    await a_journal(tmp_path, 8000)
    full = size_of(tmp_path, "journal.db")
    async with opened(tmp_path, checkpoint_pages=PAGES) as journal:
        head = await grant(journal, fence=1)
        top = 8000
        with capture_logs() as logs, no_file_may_grow_beyond(full):
            while not any(each["event"] == "journal_checkpoint_failed" for each in logs):
                await append(journal, head, top, text="x" * 3000)
                top += 1
                await looked(journal)
            assert size_of(tmp_path, "journal.db-wal") < full
            await append(journal, head, top)
            top += 1
        assert await top_of(journal) == top
        for _ in range(CHECK_EVERY):
            await append(journal, head, top)
            top += 1
        await looked(journal)
        assert size_of(tmp_path, "journal.db") > full
        loaded = await journal.load(key(), now_ms=NOW)
        assert loaded is not None and len(loaded.records) == top
