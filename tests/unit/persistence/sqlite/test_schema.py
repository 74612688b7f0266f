"""What files are refused at the start, and how old ones get to the newest version."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from persistence.sql.migrations import read_migrations, required_version
from persistence.sqlite import schema as sqlite_schema
from persistence.sqlite.library import sqlite3
from tests.support.stores.stores import a_journal, one_more_migration, opened, overwrite, refused, top_of


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


@pytest.mark.parametrize("live", [True, False], ids=["in the archive", "brought back"])
async def test_archived_sessions_are_refused_and_stubs_of_those_brought_back_go(tmp_path: Path, live: bool) -> None:
    await a_journal(tmp_path)
    stub = ("acme", "s", "archive/1", 20, 9, "k", b"key", 1, None if live else 2)
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        file.execute(
            "INSERT INTO archived (tenant, session, object, top, size, key_id, sealed, archived_at, recalled_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            stub,
        )
        file.commit()
    if live:
        error = await refused(tmp_path)
        assert error.code == "journal_archived" and "ec02a8a4" in error.public_message
    else:
        async with opened(tmp_path) as journal:
            assert await top_of(journal) == 20
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        assert file.execute("SELECT count(*) FROM archived").fetchone() == (int(live),)


async def test_notes_of_a_backup_of_the_release_before_are_refused(tmp_path: Path) -> None:
    await a_journal(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        file.execute("CREATE TABLE backup_state (one INTEGER)")
        file.commit()
    error = await refused(tmp_path)
    assert error.code == "journal_backed_up" and "without its backup" in error.public_message


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
        assert file.execute("SELECT number FROM applied_migrations").fetchone() == (len(list(longer.iterdir())),)
        assert file.execute("SELECT DISTINCT mood FROM heads").fetchall() == [("new",)]


async def test_a_compatible_migration_leaves_the_file_to_the_release_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_journal(tmp_path)
    known = required_version(read_migrations(sqlite_schema.MIGRATIONS))
    text = f"-- compatible with {known}\nALTER TABLE heads ADD COLUMN mood TEXT NOT NULL DEFAULT 'new';"
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_schema, "MIGRATIONS", one_more_migration(sqlite_schema.MIGRATIONS, tmp_path, text))
        async with opened(tmp_path) as journal:
            assert await top_of(journal) == 20
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (known,)
    for patched_again in (False, True):  # the release before starts, and the new one again
        with monkeypatch.context() as patched:
            if patched_again:
                patched.setattr(sqlite_schema, "MIGRATIONS", tmp_path / "longer migrations")
            async with opened(tmp_path) as journal:
                assert await top_of(journal) == 20


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


@pytest.mark.parametrize("version", [1, 3, 6])
async def test_a_file_of_an_old_version_gets_to_the_newest_with_its_rows(tmp_path: Path, version: int) -> None:
    """The same tables as a new file has, and what the old server wrote."""
    texts = read_migrations(sqlite_schema.MIGRATIONS)
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        file.executescript("".join(texts[:version]))
        file.executescript(
            f"PRAGMA application_id = {sqlite_schema.APPLICATION_ID}; PRAGMA user_version = {version};"
            " INSERT INTO usage (tenant, session, response, principal_key, principal_role, model, status, input_tokens,"
            " output_tokens, cached_tokens, reasoning_tokens, recomputed_tokens, withheld_tokens, at"
            ") VALUES ('t', 's', 'r', 'k', 'user', 'm', 'completed', 1, 2, 3, 4, 5, 6, 7)"
        )
    await a_journal(tmp_path)
    await a_journal(tmp_path / "new")
    tables = []
    for folder in (tmp_path, tmp_path / "new"):
        with contextlib.closing(sqlite3.connect(folder / "journal.db")) as file:
            assert file.execute("PRAGMA user_version").fetchone() == (required_version(texts),)
            assert file.execute("SELECT number FROM applied_migrations").fetchone() == (len(texts),)
            tables.append(set(file.execute("SELECT type, name, sql FROM sqlite_schema").fetchall()))
            rows = file.execute("SELECT output_tokens, cost, currency FROM usage").fetchall()
            assert rows == ([(2, 0, "")] if folder == tmp_path else [])
    assert tables[0] == tables[1]
