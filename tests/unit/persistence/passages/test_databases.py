"""The databases behind the index: transactions that stand whole or not at all, and what is said when one is away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from persistence.passages.databases import PostgresPassages, SqlitePassages
from persistence.sql.script import Query, Script, one_query
from sessions.model.errors import BadInput, Unavailable

INSERT = (
    "INSERT INTO stores (tenant, id, end_user, model, dimensions, created_at, key_id, body)"
    " VALUES ($1, $2, '', 'm', 3, 1, '', x'00')"
)


async def test_a_script_stands_whole_or_not_at_all(tmp_path: Path) -> None:
    database = SqlitePassages(tmp_path / "passages.db")
    await database.open()

    def broken() -> Script[None]:
        yield Query(INSERT, ("acme", "a"))
        raise BadInput("invalid_request", "no")

    with pytest.raises(BadInput):
        await database.run(broken)
    assert await database.rows("SELECT id FROM stores") == []
    await database.run(lambda: one_query(INSERT, ("acme", "b")))
    with pytest.raises(Unavailable, match="IntegrityError"):
        await database.run(lambda: one_query(INSERT, ("acme", "b")))
    assert await database.rows("SELECT id FROM stores WHERE tenant = $1", ("acme",)) == [("b",)]
    many = await asyncio.gather(*(database.rows("SELECT count(*) FROM stores") for _ in range(9)))
    assert many == [[(1,)]] * 9
    await database.close()
    with pytest.raises(Unavailable):
        await database.rows("SELECT 1")
    again = SqlitePassages(tmp_path / "passages.db")
    await again.open()
    assert await again.rows("SELECT id FROM stores") == [("b",)]
    await again.close()


async def test_extensions_can_be_loaded_by_no_statement(tmp_path: Path) -> None:
    database = SqlitePassages(None)
    await database.open()
    with pytest.raises(Unavailable):
        await database.rows("SELECT load_extension($1)", ("libm.so.6",))
    await database.close()


async def test_a_server_that_is_not_there_says_so() -> None:
    database = PostgresPassages("postgresql://127.0.0.1:1/none")
    with pytest.raises(Unavailable, match="do not answer"):
        await database.open()
    work: Any = database.rows("SELECT 1")
    with pytest.raises(Unavailable):
        await work
    await database.close()
