"""SQLite's own part: what it refuses at the start, and that its statements go by indexes."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from persistence.sqlite import schema as sqlite_schema
from persistence.sqlite import statements as sql
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.library import sqlite3
from sessions.model.errors import Unavailable
from sessions.model.types import TenantId
from tests.support.stores import (
    NOW,
    a_journal,
    append,
    grant,
    key,
    one_more_migration,
    opened,
    overwrite,
    refused,
    top_of,
)

# -- refused at the start -----------------------------------------------------------------------------------------


async def test_a_second_journal_on_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with pytest.raises(Unavailable) as caught:
            await SqliteDatabase(tmp_path).open()
        assert caught.value.code == "journal_folder_locked"
        assert str(tmp_path) in caught.value.public_message
    async with opened(tmp_path):
        pass


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder that cannot be written. Root may write anything that its mode forbids: for it, a read-only mount."""
    if os.geteuid() != 0:
        folder.chmod(0o500)
        try:
            yield
        finally:
            folder.chmod(0o700)
        return
    if subprocess.run(["mount", "--bind", folder, folder], capture_output=True).returncode != 0:
        pytest.skip("root may not mount here, so no folder can be made read-only for it")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


async def test_a_read_only_folder_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    await a_journal(folder)
    with read_only(folder):
        error = await refused(folder)
    assert error.code == "journal_folder_unusable"
    assert str(folder) in error.public_message
    async with opened(folder) as journal:
        assert await top_of(journal) == 20


async def test_a_folder_where_the_file_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.db").mkdir()
    error = await refused(tmp_path)
    assert error.code == "journal_unusable"
    assert str(tmp_path / "journal.db") in error.public_message


@pytest.mark.parametrize(
    ("start", "length"),
    [(0, 100), (0, 16), (4096, 2000), (8192, 4096), (28, 4)],
    ids=["header", "magic", "second page", "third page", "page count"],
)
async def test_garbage_in_the_file_is_refused_and_left_as_it_is(tmp_path: Path, start: int, length: int) -> None:
    await a_journal(tmp_path, 300)
    path = tmp_path / "journal.db"
    overwrite(path, start, b"\xde" * length)
    before = path.read_bytes()
    error = await refused(tmp_path)
    assert error.code == "journal_damaged"
    assert str(path) in error.public_message
    assert path.read_bytes() == before


@pytest.mark.parametrize("whole_bytes_max", [2**30, 0], ids=["checked whole", "too large to check whole"])
async def test_a_truncated_file_is_refused(tmp_path: Path, whole_bytes_max: int) -> None:
    await a_journal(tmp_path, 300)
    path = tmp_path / "journal.db"
    os.truncate(path, path.stat().st_size - 4096 * 3)
    error = await refused(tmp_path, quick_check_bytes_max=whole_bytes_max)
    assert error.code == "journal_damaged"


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    await a_journal(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        file.execute(f"PRAGMA user_version = {99}")
    assert (await refused(tmp_path)).code == "journal_newer"


async def test_another_applications_file_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        file.execute("CREATE TABLE theirs (x)")
        file.commit()
    assert (await refused(tmp_path)).code == "journal_foreign"


async def test_a_migration_runs_once_and_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await a_journal(tmp_path)
    longer = one_more_migration(
        sqlite_schema.MIGRATIONS, tmp_path, "ALTER TABLE heads ADD COLUMN mood TEXT NOT NULL DEFAULT 'new';"
    )
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", longer)
    for _ in range(2):
        async with opened(tmp_path) as journal:
            assert await top_of(journal) == 20
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (len(list(longer.iterdir())),)
        assert file.execute("SELECT DISTINCT mood FROM heads").fetchall() == [("new",)]


async def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await a_journal(tmp_path)
    longer = one_more_migration(sqlite_schema.MIGRATIONS, tmp_path, "CREATE TABLE half (x); SELECT nonsense;")
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_schema, "MIGRATIONS", longer)
        assert (await refused(tmp_path)).code == "journal_unusable"
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        assert file.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'half'").fetchone() == (0,)
    async with opened(tmp_path) as journal:
        assert await top_of(journal) == 20


# -- statements ---------------------------------------------------------------------------------------------------


async def test_every_statement_goes_by_an_index(tmp_path: Path) -> None:
    """No read and no write of one session may look at all of a table."""
    await a_journal(tmp_path)
    plans: dict[str, str] = {}
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        statements = {
            "advance": sql.advance(4),
            "insert": sql.insert_events(4),
            "patch": sql.patch_heads(2),
            "grant": sql.grant_next(2),
            "head": sql.HEAD,
            "read": sql.READ,
            "load": sql.LOAD,
            "find": sql.FIND_COMMAND,
            "list": sql.list_heads(TenantId("t"), None, 5, (1, "s"))[0],
            "list of a user": sql.list_heads(TenantId("t"), "u", 5, None)[0],
            "open": sql.OPEN_HEADS,
            "purgeable": sql.purgeable(idle=False),
            "purge": sql.PURGE_EVENTS,
            "purge commands": sql.PURGE_COMMANDS,
            "usage": sql.READ_USAGE,
        }
        for name, statement in statements.items():
            count = max((int(n) for n in re.findall(r"\?(\d+)", statement)), default=statement.count("?"))
            rows = file.execute(f"EXPLAIN QUERY PLAN {statement}", [None] * count).fetchall()
            plans[name] = "\n".join(row[3] for row in rows)
    for name, plan in plans.items():
        for table in ("heads", "events", "commands", "snapshots", "usage"):
            assert f"SCAN {table}" not in plan.replace(f"SCAN {table} USING INDEX {table}_", ""), f"{name}: {plan}"
    assert "heads_listed" in plans["list"] and "TEMP B-TREE" not in plans["list"]
    assert "heads_listed_by_user" in plans["list of a user"] and "TEMP B-TREE" not in plans["list of a user"]


async def test_readers_cannot_write(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        for reader in journal.database._readers:
            with pytest.raises(sqlite3.OperationalError):
                await reader.execute_fetchall("DELETE FROM heads")


async def test_reads_beyond_one_page_of_a_load_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.sqlite.journal.LOAD_PAGE_ROWS", 7)
    async with opened(tmp_path) as journal:
        await append(journal, await grant(journal), 0, 50)
        loaded = await journal.load(key(), now_ms=NOW)
        assert loaded is not None
        assert [r.offset for r in loaded.records] == list(range(1, 51))
