"""How a PostgreSQL schema gets to the newest version."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from persistence.postgres import schema as postgres_schema
from persistence.postgres.database import PostgresDatabase
from persistence.postgres.store import PostgresStore
from persistence.sql.migrations import read_migrations
from sessions.model.errors import Unavailable
from tests.support.stores.postgres_server import PostgresServer
from tests.support.stores.postgres_stores import by_hand, grant, opened_at
from tests.support.stores.stores import append, one_more_migration, top_of

pytestmark = pytest.mark.cluster


async def test_a_newer_schema_is_refused(server: PostgresServer, schema: str) -> None:
    async with opened_at(server.dsn, schema):
        pass
    async with by_hand(server, schema) as connection:
        await connection.execute("UPDATE store SET version = version + 1")
    with pytest.raises(Unavailable) as caught:
        await PostgresDatabase(server.dsn, schema=schema).open()
    assert caught.value.code == "journal_newer"


async def test_a_migration_runs_once_however_many_start(
    server: PostgresServer, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_at(server.dsn, schema) as journal:
        await append(journal, await grant(journal), 0)
    longer = one_more_migration(
        postgres_schema.MIGRATIONS, tmp_path, "ALTER TABLE heads ADD COLUMN mood text NOT NULL DEFAULT 'new'"
    )
    monkeypatch.setattr(postgres_schema, "MIGRATIONS", longer)
    stores = [PostgresStore(PostgresDatabase(server.dsn, schema=schema)) for _ in range(5)]
    await asyncio.gather(*(store.open() for store in stores))
    assert len({store.journal.incarnation for store in stores}) == 1
    assert [await top_of(store.journal) for store in stores] == [1] * 5
    await asyncio.gather(*(store.close() for store in stores))


async def columns_of(connection: asyncpg.Connection, schema: str) -> set[tuple[object, ...]]:
    rows = await connection.fetch(
        "SELECT table_name, column_name, data_type, column_default, is_nullable FROM information_schema.columns"
        " WHERE table_schema = $1",
        schema,
    )
    indexes = await connection.fetch("SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = $1", schema)
    return {tuple(str(value).replace(schema, "") for value in row) for row in (*rows, *indexes)}


async def test_a_schema_of_an_old_version_gets_to_the_newest_with_its_rows(server: PostgresServer, schema: str) -> None:
    texts, new = read_migrations(postgres_schema.MIGRATIONS), f"{schema}_new"
    async with by_hand(server, schema) as connection:
        await connection.execute(f'CREATE SCHEMA "{schema}"')
        for text in texts[:4]:
            await connection.execute(text)
        await connection.execute("UPDATE store SET version = 4")
        await connection.execute("INSERT INTO commands VALUES ('t', 's', 'p', 'c', 1, '', '')")
    async with opened_at(server.dsn, schema), opened_at(server.dsn, new):
        pass
    async with by_hand(server, schema) as connection:
        assert await connection.fetchval("SELECT version FROM store") == len(texts)
        assert await connection.fetchval("SELECT count(*) FROM commands") == 1
        assert await columns_of(connection, schema) == await columns_of(connection, new)
