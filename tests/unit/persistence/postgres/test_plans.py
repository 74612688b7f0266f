"""The statements that every server repeats go by an index, in a database with 100,000 sessions of 200 tenants."""

from __future__ import annotations

import pytest

from persistence.postgres import statements as sql
from persistence.sql import end_users
from sessions.model.journal_types import Due
from sessions.model.types import TenantId, UnixMs
from tests.support.stores.postgres_server import PostgresServer
from tests.support.stores.postgres_stores import by_hand, opened_at

HEADS = """
INSERT INTO heads (tenant, session, fence, top, empty, epoch, incarnation, owner, open, listed, end_user, key_id, about,
    created_at, updated_at, deleted_at)
SELECT 't' || n % 200, 's' || n, 1, 1, n % 1000 = 0, 'e', 'i', 'o', n % 1000 = 1, n % 10 > 0, 'u' || n % 50, '', '',
    1000000 + n, 1000000 + n, CASE WHEN n % 100 = 2 THEN 1000000 + n END FROM generate_series(1, 100000) AS n
"""
USAGE = """
INSERT INTO usage (tenant, session, response, principal_key, principal_user, principal_role, model, status,
    input_tokens, output_tokens, cached_tokens, reasoning_tokens, recomputed_tokens, withheld_tokens, at, relayed_at)
SELECT 't' || n % 200, 's', 'r' || n, 'k', 'u' || n % 50, 'user', 'm', 'completed', 1, 1, 1, 1, 1, 1, n, n
FROM generate_series(1, 100000) AS n
"""
COMMANDS = """
INSERT INTO commands (tenant, session, principal, command, at, digest, answer)
SELECT 't' || n % 200, 's' || n, 'p', 'c', n, '', '' FROM generate_series(1, 100000) AS n
"""


@pytest.mark.slow
@pytest.mark.cluster
async def test_every_statement_that_is_repeated_goes_by_an_index(server: PostgresServer, schema: str) -> None:
    early, tenant = UnixMs(1_000_050), TenantId("t1")
    idle = Due(deleted_before=early, unlisted_before=early, idle_before=early)
    statements = {
        "open": (sql.OPEN_HEADS, [10, "", ""]),
        "due": sql.purgeable(Due(deleted_before=early, unlisted_before=early), 10),
        "idle": sql.purgeable(idle, 10),
        "idle of a tenant": sql.purgeable(Due(deleted_before=early, idle_before=early, tenant=tenant), 10),
        "list": sql.list_heads(tenant, None, 10, None),
        "list of a user": sql.list_heads(tenant, "u1", 10, None),
        "heads of a user": (sql.HEADS_OF_USER, [tenant, "u1", "", 10]),
        "old commands": (sql.PURGE_COMMANDS, [50, 10]),
        "usage of a user": (end_users._USAGE_ROWS_BEHIND, [tenant, "u1", -1, -1, 10]),
        "nameless usage": (end_users._NAMELESS_USAGE, [tenant, "u1", -1, -1, 5_000, 5_000]),
    }
    async with opened_at(server.dsn, schema), by_hand(server, schema) as connection:
        for rows in (HEADS, USAGE, COMMANDS):
            await connection.execute(rows)
        await connection.execute("ANALYZE heads, usage, commands")
        for name, (statement, values) in statements.items():
            plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {statement}", *values))
            assert "Seq Scan on" not in plan, f"{name}: {plan}"
