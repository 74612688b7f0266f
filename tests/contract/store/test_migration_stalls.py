"""Migrations run beside the work: none writes a table anew, and a writer goes on through all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.sql.migrations import read_migrations
from persistence.sqlite import schema as sqlite_schema
from testbed.postgres_server import PostgresServer
from tests.support.stores.migration_stalls import postgres_stalls, rewritten_by_each, sqlite_stalls

pytestmark = pytest.mark.slow

LAST = len(read_migrations(sqlite_schema.MIGRATIONS))
INDEXED_ONCE = {3: {"heads"}}  # released; from 14 on an index of a table with rows is built concurrently


async def test_a_writer_goes_on_through_every_migration_of_sqlite(tmp_path: Path) -> None:
    stalls = await sqlite_stalls(tmp_path, events=1_000)
    assert [each.number for each in stalls] == list(range(2, LAST + 1)) and all(each.appends for each in stalls)


@pytest.mark.cluster
async def test_a_writer_goes_on_through_every_migration_of_postgres(tmp_path: Path) -> None:
    server = PostgresServer()
    try:
        server.start()
        stalls = await postgres_stalls(server.dsn, tmp_path, events=1_000)
        assert [each.number for each in stalls] == list(range(2, LAST + 1)) and all(each.appends for each in stalls)
    finally:
        server.remove()


@pytest.mark.cluster
async def test_no_migration_writes_a_table_anew_or_builds_an_index_on_one_that_has_rows(tmp_path: Path) -> None:
    server = PostgresServer()
    try:
        server.start()
        changed = await rewritten_by_each(server.dsn, tmp_path)
        assert {number: tables for number, tables in changed.items() if tables} == INDEXED_ONCE
    finally:
        server.remove()
