"""The database of keys: statements for both, what is overwritten, and one that is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.key_database import KeyDatabase, PostgresKeyDatabase, SqliteKeyDatabase
from sessions.model.errors import Unavailable
from tests.support.stores.journals import postgres

INSERT = "INSERT INTO {data_keys} (tenant, session, master, id, wrapped) VALUES ($1, $2, $3, $4, $5)"
FIND = "SELECT id, wrapped FROM {data_keys} WHERE session = $2 AND tenant = $1"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.cluster)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> KeyDatabase:
    if request.param == "sqlite":
        return SqliteKeyDatabase(tmp_path / "folder" / "keys.db")
    return PostgresKeyDatabase(postgres().dsn, schema="key_database")


async def test_one_statement_serves_both(database: KeyDatabase) -> None:
    await database.open()
    assert await database.rows(INSERT, "t", "s", "m", "id", b"wrapped") == []
    ((key_id, wrapped),) = await database.rows(FIND, "t", "s")
    assert (key_id, bytes(wrapped)) == ("id", b"wrapped") and await database.rows(FIND, "s", "t") == []
    with pytest.raises(Unavailable):
        await database.rows(INSERT, "t", "s", "m", "id", b"again")
    assert await database.rows("DELETE FROM {data_keys} RETURNING id") == [("id",)]
    await database.wipe("data_keys")
    await database.close()
    await database.close()
    with pytest.raises(Unavailable):
        await database.rows(FIND, "t", "s")


async def test_the_file_is_its_owners_and_forgets_what_was_deleted(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    database = SqliteKeyDatabase(path)
    await database.open()
    await database.rows(INSERT, "t", "s", "m", "id", b"a wrapped key")
    assert b"a wrapped key" in path.read_bytes() and path.stat().st_mode & 0o077 == 0
    await database.rows("DELETE FROM {data_keys}")
    assert b"a wrapped key" not in path.read_bytes()
    await database.close()


async def test_a_server_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    nobody = PostgresKeyDatabase(f"postgresql://x@/x?host={tmp_path}", timeout_s=2.0)
    with pytest.raises(Unavailable):
        await nobody.open()
