"""What a look at a PostgreSQL server from outside finds."""

from __future__ import annotations

import time

from persistence.postgres.database import PostgresDatabase
from persistence.postgres.inspection import inspect_postgres
from tests.support.stores.postgres_server import PostgresServer


async def test_a_server_before_and_after_it_has_our_tables(server: PostgresServer) -> None:
    empty = await inspect_postgres(server.dsn.replace("/postgres?", "/template1?"), time.time)
    assert (empty.failure, empty.schema_version) == ("", 0) and empty.schema_known >= 12
    database = PostgresDatabase(server.dsn, schema="sessile")
    await database.open()
    await database.close()
    found = await inspect_postgres(server.dsn, time.time)
    assert 0 < found.schema_required <= found.schema_version == found.schema_known
    assert found.fsync and not found.standby
    assert found.standbys == () and not found.archive_fails


async def test_one_that_is_away_is_a_failure_without_its_password() -> None:
    for dsn in ("postgresql://user:secret@127.0.0.1:1/db", "postgresql://user@127.0.0.1:no-port/db"):
        found = await inspect_postgres(dsn, time.time)
        assert found.failure and "secret" not in found.failure
