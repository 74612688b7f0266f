"""Parts of the driver for PostgreSQL: errors, incarnations, audit rows, plans, a look from outside."""

from __future__ import annotations

import time
from typing import Any

import asyncpg
import pytest

from persistence.codec import PlainCodec
from persistence.postgres import audit_rows
from persistence.postgres import statements as sql
from persistence.postgres.audit_rows import HeadCache
from persistence.postgres.database import PostgresDatabase
from persistence.postgres.error_mapping import FAILURES, translate, unavailable
from persistence.postgres.incarnation import KnownPosition, incarnation_number, was_restored
from persistence.postgres.inspection import inspect_postgres
from persistence.postgres.statements import batch_of
from persistence.sql import end_users
from persistence.write_batch import AppendWrite
from sessions.model.audit import AuditHead, Sealer
from sessions.model.errors import OutcomeUnknown, Unavailable
from sessions.model.journal_types import Append, Due
from sessions.model.types import TenantId, UnixMs
from testbed.postgres_server import PostgresServer
from tests.support.stores.audit_tables import a_row
from tests.support.stores.journals import NOW, key
from tests.support.stores.postgres_stores import by_hand, grant, opened_at
from tests.support.stores.stores import append, delta, top_of

SEALER = Sealer(b"secret")


class Chains:
    """A connection to a database with the heads of these tenants; how often it was read."""

    def __init__(self, **heads: AuditHead) -> None:
        self.heads = heads
        self.reads: list[list[str]] = []

    async def fetch(self, statement: str, tenants: list[str]) -> list[Any]:
        self.reads.append(list(tenants))
        return [(tenant, *self.heads[tenant]) for tenant in tenants if tenant in self.heads]

    async def execute(self, statement: str, tenants: list[str]) -> None:
        for tenant in tenants:
            self.heads.setdefault(tenant, AuditHead(0, b"", b""))


def a_write(tenant: str, count: int = 1) -> AppendWrite:
    append = Append(key=key("s", tenant), fence=1, top=0, at=NOW, audit=tuple(a_row(n) for n in range(count)))
    return AppendWrite(PlainCodec(), append, sealer=SEALER, bytes_max=10_000)


async def test_a_process_remembers_no_more_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_rows, "CHAINS_MAX", 1)
    database, cache = Chains(), HeadCache()
    for tenants in (["a", "b"], ["c"], ["a"]):
        await cache.of(database, [a_write(tenant) for tenant in tenants])
    assert database.reads[-1] == ["a"] and ["c"] in database.reads


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (asyncpg.QueryCanceledError(), "journal_slow"),
        (asyncpg.CannotConnectNowError(), "journal_slow"),
        (asyncpg.DiskFullError(), "journal_disk_full"),
        (asyncpg.ReadOnlySQLTransactionError(), "journal_read_only"),
        (asyncpg.InterfaceError("closed"), "journal_away"),
        (asyncpg.UndefinedTableError(), "journal_unavailable"),
    ],
)
def test_an_answer_of_the_server_means_that_nothing_happened(failure: Exception, code: str) -> None:
    error = translate(failure)
    assert type(error) is Unavailable and error.code == code and error.retryable
    assert error.__cause__ is failure and isinstance(failure, FAILURES)


@pytest.mark.parametrize(
    "failure",
    [TimeoutError(), ConnectionResetError(), asyncpg.ConnectionDoesNotExistError(), asyncpg.AdminShutdownError()],
)
def test_without_an_answer_nobody_knows(failure: Exception) -> None:
    error = translate(failure)
    assert isinstance(error, OutcomeUnknown) and error.__cause__ is failure
    assert type(unavailable(failure)) is Unavailable, "unless it was never sent"


@pytest.mark.parametrize(
    ("incarnation", "commits", "back"),
    [
        ("2-mine", 10, False),
        ("2-mine", 11, False),  # the last batch got no answer, and stands
        ("2-mine", 9, True),
        ("2-mine", None, True),
        ("1-older", 10, True),  # from before an incident that we know of
        ("2-other", 10, True),  # the same incident, found out twice: two histories
        ("3-newer", None, False),  # somebody else has seen to it
    ],
)
def test_what_proves_that_a_store_went_back(incarnation: str, commits: int | None, back: bool) -> None:
    known = KnownPosition(writer="w", incarnation="2-mine", acknowledged=10)
    found = {"identity": "x", "now": "x", "incarnation": incarnation, "commits": commits}
    assert was_restored(found, known) is back
    assert was_restored({**found, "now": "y"}, known)


def test_a_process_that_knows_nothing_yet_believes_the_store() -> None:
    found = {"identity": "x", "now": "x", "incarnation": "7-other", "commits": None}
    assert not was_restored(found, KnownPosition(writer="w"))
    assert was_restored({**found, "identity": ""}, KnownPosition(writer="w")), "a new store has no identity"


@pytest.mark.parametrize(("incarnation", "number"), [("", 0), ("3-abc", 3), ("12-a-b", 12)])
def test_an_incarnation_begins_with_its_number(incarnation: str, number: int) -> None:
    assert incarnation_number(incarnation) == number


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
