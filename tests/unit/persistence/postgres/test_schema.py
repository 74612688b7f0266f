"""A PostgreSQL schema's versions, and what several processes do in it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from persistence.postgres import schema as postgres_schema
from persistence.postgres.database import PostgresDatabase
from persistence.postgres.schema import versions_of
from persistence.postgres.store import PostgresStore
from persistence.sql.migrations import read_migrations, required_version
from sessions.governance.audit_trim import trim
from sessions.governance.audit_verify import verify
from sessions.model.api_keys import ApiKeyRequest, make_api_key
from sessions.model.audit import Audited
from sessions.model.errors import Fenced, Internal, Unavailable
from sessions.model.journal_types import Due
from sessions.model.types import UnixMs
from testbed.postgres_server import PostgresServer
from tests.support.stores.journals import ACME, NOW, a_log, an_append, patch, postgres, purge
from tests.support.stores.journals import grant as acme_grant
from tests.support.stores.journals import key as acme_key
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


_names = itertools.count()


@pytest.fixture
async def replicas() -> AsyncIterator[list[PostgresStore]]:
    schema = f"audit_{next(_names)}"
    stores = [PostgresStore(PostgresDatabase(postgres().dsn, schema=schema)) for _ in range(3)]
    for store in stores:
        await store.open()
    yield stores
    for store in stores:
        await store.close()


def a_row(n: int) -> Audited:
    return Audited(action="verdict", at=UnixMs(NOW + n), detail={"n": n})


async def test_replicas_keep_one_chain(replicas: list[PostgresStore]) -> None:
    """Appends with verdicts on three replicas, keys that are made, sessions that are purged, all of one tenant."""
    heads = [await acme_grant(replicas[n % 3].journal, acme_key(f"s{n}")) for n in range(9)]
    for n in range(6):
        await a_log(replicas[0].journal, f"old{n}", 1, head=patch(deleted_at=UnixMs(NOW - 9)))

    async def appends(number: int, head: Any) -> None:
        for top in range(6):
            await replicas[number % 3].journal.append(
                an_append(msgspec.structs.replace(head, top=top), 1, audit=(a_row(number), a_row(number)))
            )

    keys = [make_api_key(ApiKeyRequest(tenant="acme"), bytes([n]) * 40, now=NOW)[0] for n in range(6)]
    due = Due(deleted_before=NOW)
    await asyncio.gather(
        *(appends(number, head) for number, head in enumerate(heads)),
        *(replicas[n % 3].api_keys.add(each, audit=a_row(n)) for n, each in enumerate(keys)),
        *(store.audit.record(ACME, [a_row(0)]) for store in replicas),
        purge(replicas[1].journal, due, commands_before=NOW, limit=9, at=NOW),
        purge(replicas[2].journal, due, commands_before=NOW, limit=9, at=NOW),
    )
    for store in replicas:
        found = await verify(store.audit, ACME)
        assert found.intact and found.rows == 9 * 6 * 2 + 6 + 3 + 6
    for number, head in enumerate(heads):
        stored = await replicas[number % 3].journal.head(head.key)
        assert stored is not None and stored.top == 6


async def test_a_key_file_proves_what_the_database_cannot(replicas: list[PostgresStore]) -> None:
    """Whoever has the whole database, its secret included, cannot write rows that a key file does not disown."""
    schema = f"audit_{next(_names)}"
    stores = []
    for audit_key in (None, b"k" * 32, None):
        store = PostgresStore(PostgresDatabase(postgres().dsn, schema=schema, audit_key=audit_key))
        await store.open()
        stores.append(store)
    before, with_file, forger = (store.audit for store in stores)
    try:
        await before.record(ACME, [a_row(1)])
        await with_file.record(ACME, [a_row(2)])
        found = await verify(with_file, ACME)
        assert found.intact and found.weak == 1
        assert (await verify(forger, ACME)).first_broken == 2, "without the file nobody can tell"
        await forger.record(ACME, [a_row(3)])
        assert (await verify(with_file, ACME)).weak == 2, "seen by whoever keeps count"
    finally:
        for store in stores:
            await store.close()


async def test_reads_beyond_one_page_of_a_load_are_joined(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.postgres.statements.LOAD_PAGE_ROWS", 7)
    async with opened_at(server.dsn, schema) as journal:
        await append(journal, await grant(journal), 0, 50)
        loaded = await journal.load(key(), now_ms=NOW)
        assert loaded is not None and [record.offset for record in loaded.records] == list(range(1, 51))
        async with by_hand(server, schema) as connection:
            await connection.execute('DELETE FROM events WHERE "offset" > 40')
        with pytest.raises(Internal) as caught:
            await journal.load(key(), now_ms=NOW)
        assert caught.value.code == "journal_hole"


async def test_replicas_that_trim_and_append_at_once_keep_one_chain(replicas: list[PostgresStore]) -> None:
    logs = [store.audit for store in replicas]
    await logs[0].record(ACME, [a_row(n) for n in range(60)])
    heads = [await acme_grant(replicas[n % 3].journal, acme_key(f"s{n}")) for n in range(6)]

    async def appends(number: int, head: Any) -> None:
        for top in range(6):
            one = msgspec.structs.replace(head, top=top)
            await replicas[number % 3].journal.append(an_append(one, 1, audit=(a_row(100 + number),)))

    async def trims(number: int) -> int:
        ends = [UnixMs(NOW + end) for end in range(10, 61, 10)]
        return sum([await trim(logs[number], ACME, before=end, now=UnixMs(NOW + 99)) for end in ends])

    _, trimmed = await asyncio.gather(
        asyncio.gather(*(appends(number, head) for number, head in enumerate(heads))),
        asyncio.gather(*(trims(number) for number in range(3))),
    )
    assert sum(trimmed) == 60, "each row went once, whoever took it away"
    for log in logs:
        found = await verify(log, ACME)
        assert found.intact and found.trimmed == 60 and found.rows > 36, found.why


async def test_a_replica_that_lost_its_session_leaves_no_row(replicas: list[PostgresStore]) -> None:
    here, there = replicas[0].journal, replicas[1].journal
    head = await acme_grant(here, acme_key("s"))
    await here.append(an_append(head, 1, audit=(a_row(1),)))
    taken = await acme_grant(there, acme_key("s"), 1)
    await there.append(an_append(taken, 1, audit=(a_row(2),)))
    behind = msgspec.structs.replace(head, top=1)
    other = await acme_grant(here, acme_key("other"))
    outcomes = await asyncio.gather(
        here.append(an_append(behind, 1, audit=(a_row(3),))),
        here.append(an_append(other, 1, audit=(a_row(4),))),
        return_exceptions=True,
    )
    assert [type(each) for each in outcomes] == [Fenced, type(None)]
    rows = await replicas[0].audit.rows(ACME, after=0, limit=9)
    assert [msgspec.json.decode(row.body)["detail"]["n"] for row in rows] == [1, 2, 4]
    assert (await verify(replicas[1].audit, ACME)).intact
