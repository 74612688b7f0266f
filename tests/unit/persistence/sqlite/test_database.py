"""A store's file and folder: whose they are, and what its connections may do."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from persistence.sql.script import Query, Script
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.library import sqlite3
from sessions.model.errors import Conflict, Unavailable
from tests.support.stores.stores import a_journal, append, grant, opened, refused, top_of


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


async def test_readers_cannot_write(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        for reader in journal.database._readers:
            with pytest.raises(sqlite3.OperationalError):
                await reader.execute_fetchall("DELETE FROM heads")


async def test_a_script_is_one_write_among_others_and_its_error_is_its_own(tmp_path: Path) -> None:
    def count() -> Script[int]:
        ((sessions,),) = yield Query("SELECT count(*) FROM heads WHERE tenant = $1", ("t",))
        return int(sessions)

    def refuse() -> Script[int]:
        yield Query("SELECT 1")
        raise Conflict("taken", "It is taken.")

    async with opened(tmp_path) as journal:
        head = await grant(journal)
        assert await journal.database.run(count) == 1
        with pytest.raises(Conflict):
            await journal.database.run(refuse)
        await append(journal, head, 0)
        assert await top_of(journal) == 1
        (row,) = await journal.database.rows("SELECT top, $2 FROM heads WHERE session = $1", ("s", "x"))
        assert tuple(row) == (1, "x")
    with pytest.raises(Unavailable):
        await journal.database.run(count)
