"""Purging in steps: a session that is due no more stays, and one that is begun cannot go on."""

from __future__ import annotations

import pytest

from persistence.postgres.purge import purge_session
from sessions.model.audit import Sealer
from sessions.model.journal_types import Due
from sessions.model.types import UnixMs
from tests.support.stores.journals import NOW, a_command, a_log, patch
from tests.support.stores.postgres_server import PostgresServer
from tests.support.stores.postgres_stores import by_hand, opened_at

pytestmark = pytest.mark.cluster
SEALER = Sealer(b"secret")


async def test_a_session_goes_in_steps_and_says_so_in_its_chain(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistence.postgres.purge.PURGE_ROWS", 2)
    async with opened_at(server.dsn, schema) as journal, by_hand(server, schema) as connection:
        gone = await a_log(journal, "gone", 5, head=patch(deleted_at=UnixMs(NOW - 9)), commands=(a_command(1),))
        due = Due(deleted_before=NOW)
        assert await purge_session(connection, gone.key, due, SEALER, NOW)
        assert not await purge_session(connection, gone.key, due, SEALER, NOW), "it is not there any more"
        for table in ("heads", "events", "commands"):
            assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 0
        assert await connection.fetchval("SELECT count(*) FROM audit WHERE tenant = 'acme'") == 1
