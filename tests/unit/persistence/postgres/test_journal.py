"""The journal in PostgreSQL: what its own statements leave to be joined or translated."""

from __future__ import annotations

import pytest

from sessions.model.errors import Internal
from tests.support.stores.postgres_server import PostgresServer
from tests.support.stores.postgres_stores import by_hand, grant, opened_at
from tests.support.stores.stores import NOW, append, key

pytestmark = pytest.mark.cluster


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
