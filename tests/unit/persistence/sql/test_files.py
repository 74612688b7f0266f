"""Files in SQL: what stands in a database, and what a thief of it has. All else is in the contract suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.sqlite.store import SqliteStore
from sessions.model.errors import Internal
from tests.support.stores.file_rows import content_of, uploaded
from tests.support.stores.journals import ACME, NOW, SqliteBed

CONTENT = b"the words of a document, unlike any others " * 20_000


async def test_nothing_of_a_file_stands_in_the_clear(tmp_path: Path) -> None:
    store = await SqliteBed(tmp_path, sealed=True).open()
    file = await uploaded(store.files, CONTENT, name="payroll-2026.txt", media_type="text/x-secret")
    await store.close()
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").glob("journal.db*"))
    for secret in (b"unlike any others", b"payroll", b"x-secret", file.sha256.encode(), bytes.fromhex(file.sha256)):
        assert secret not in stored, secret


async def test_a_file_that_is_removed_loses_its_key_at_once(tmp_path: Path) -> None:
    store = await SqliteBed(tmp_path, sealed=True).open()
    file = await uploaded(store.files, CONTENT)
    await store.files.remove(ACME, file.id, NOW)
    assert isinstance(store, SqliteStore)
    assert await store.database.rows("SELECT count(*) FROM files") == [(0,)]
    assert await store.database.rows("SELECT count(*) > 0 FROM file_chunks") == [(1,)], "their sweep comes later"
    await store.close()


@pytest.mark.parametrize(
    "change", ["body = (SELECT body FROM files WHERE id <> '{0}')", "size = size + 1", "end_user = end_user || 'x'"]
)
async def test_a_row_that_was_changed(tmp_path: Path, change: str) -> None:
    store = await SqliteBed(tmp_path, sealed=True).open()
    file, _ = await uploaded(store.files, CONTENT), await uploaded(store.files, b"other")
    assert isinstance(store, SqliteStore)
    database = store.database
    statement = f"UPDATE files SET {change.format(file.id)} WHERE id = '{file.id}'"

    def script():  # type: ignore[no-untyped-def]
        from persistence.sql.script import Query

        yield Query(statement)

    await database.run(script)
    with pytest.raises(Internal):
        await content_of(store.files, file)
    await store.close()
