"""Stores on a PostgreSQL server of the tests, and a way past them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import asyncpg

from persistence.postgres.database import PostgresDatabase
from persistence.postgres.journal import PostgresJournal
from persistence.postgres.store import PostgresStore
from sessions.model.journal_types import Head
from sessions.model.types import Epoch
from testbed.postgres_server import PostgresServer
from tests.support.stores.stores import NOW, key


@contextlib.asynccontextmanager
async def opened_at(dsn: str, schema: str, **settings: object) -> AsyncIterator[PostgresJournal]:
    store = PostgresStore(PostgresDatabase(dsn, schema=schema, **settings))  # type: ignore[arg-type]
    await store.open()
    try:
        yield store.journal
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def by_hand(server: PostgresServer, schema: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(server.dsn, server_settings={"search_path": f'"{schema}"'})
    try:
        yield connection
    finally:
        connection.terminate()


async def grant(journal: PostgresJournal, session: str = "s", fence: int | None = None, epoch: str = "e") -> Head:
    return await journal.grant(key(session), expected_fence=fence, owner="o", new_epoch=Epoch(epoch), now_ms=NOW)
