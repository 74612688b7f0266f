"""How a PostgreSQL schema gets to the newest version."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from persistence.postgres import schema as postgres_schema
from persistence.postgres.database import PostgresDatabase
from persistence.postgres.schema import versions_of
from persistence.postgres.store import PostgresStore
from persistence.sql.migrations import read_migrations, required_version
from sessions.model.errors import Unavailable
from tests.support.stores.postgres_server import PostgresServer
from tests.support.stores.postgres_stores import by_hand, grant, opened_at
from tests.support.stores.stores import append, key, one_more_migration, top_of

pytestmark = pytest.mark.cluster


async def test_a_newer_schema_is_refused(server: PostgresServer, schema: str) -> None:
    async with opened_at(server.dsn, schema):
        pass
    async with by_hand(server, schema) as connection:
        await connection.execute("UPDATE store SET version = 1000")
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


async def test_a_compatible_migration_leaves_the_database_to_the_release_before(
    server: PostgresServer, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_at(server.dsn, schema) as old:
        await append(old, await grant(old), 0)
        known = required_version(read_migrations(postgres_schema.MIGRATIONS))
        text = f"-- compatible with {known}\nALTER TABLE heads ADD COLUMN mood text NOT NULL DEFAULT 'new'"
        with monkeypatch.context() as patched:
            longer = one_more_migration(postgres_schema.MIGRATIONS, tmp_path, text)
            patched.setattr(postgres_schema, "MIGRATIONS", longer)
            async with opened_at(server.dsn, schema) as new:
                head = await old.head(key("s"))
                assert head is not None
                await append(old, head, 1)
                assert await top_of(new) == 2
        async with by_hand(server, schema) as connection:
            assert await versions_of(connection) == (known, len(list(longer.iterdir())))
    async with opened_at(server.dsn, schema) as again:
        assert await top_of(again) == 2


async def test_a_change_of_a_table_in_use_lets_its_writers_through_and_comes_again(
    server: PostgresServer, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_at(server.dsn, schema) as old:
        await append(old, await grant(old), 0)
    longer = one_more_migration(
        postgres_schema.MIGRATIONS, tmp_path, "ALTER TABLE heads ADD COLUMN mood text NOT NULL DEFAULT 'new'"
    )
    monkeypatch.setattr(postgres_schema, "MIGRATIONS", longer)
    async with by_hand(server, schema) as reader, by_hand(server, schema) as writer, by_hand(server, schema) as mover:
        reading = reader.transaction()
        await reading.start()
        await reader.fetch("SELECT * FROM heads")  # holds the table until its transaction ends
        migrating = asyncio.create_task(postgres_schema.migrate(mover, schema))
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
        while not await writer.fetchval(waiting):
            assert not migrating.done()
        await writer.execute("UPDATE heads SET updated_at = 1")  # behind the migration, which gives up
        assert not migrating.done()
        await reading.commit()
        await migrating
        assert await versions_of(mover) == (len(list(longer.iterdir())),) * 2


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
        assert await versions_of(connection) == (required_version(texts), len(texts))
        assert await connection.fetchval("SELECT count(*) FROM commands") == 1
        assert await columns_of(connection, schema) == await columns_of(connection, new)
