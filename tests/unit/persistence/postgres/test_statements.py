"""The statement of a batch of appends: who wins, and what it carries."""

from __future__ import annotations

import pytest

from persistence.codec import PlainCodec
from persistence.postgres.statements import batch_of
from persistence.write_batch import AppendWrite
from sessions.model.audit import Sealer
from sessions.model.journal_types import Append
from tests.support.stores.postgres_server import PostgresServer
from tests.support.stores.postgres_stores import by_hand, grant, opened_at
from tests.support.stores.stores import NOW, append, delta, top_of


@pytest.mark.cluster
async def test_a_batch_that_comes_too_late_is_turned_away(server: PostgresServer, schema: str) -> None:
    """A statement of a lost connection may reach the server after the next connection was made."""
    async with opened_at(server.dsn, schema) as journal:
        head = await grant(journal)
        late = Append(key=head.key, fence=head.fence, top=0, records=(delta(1, "late"),), at=NOW)
        statement, columns = batch_of([AppendWrite(PlainCodec(), late, sealer=Sealer(b""), bytes_max=10_000)])
        expected = journal.database._commits
        journal.database._drop_writer()
        await journal.database._writer_connection()
        async with by_hand(server, schema) as connection:
            row = await connection.fetchrow(statement, journal.database._writer_id, expected, *columns)
            assert row is not None
            assert (row["mine"], row["nos"]) == (0, [])
        assert await top_of(journal) == 0
        await append(journal, head, 0)
