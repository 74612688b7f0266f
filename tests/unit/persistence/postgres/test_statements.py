"""The statement of a batch of appends: who wins, and what it carries."""

from __future__ import annotations

import re

import pytest

from persistence.codec import PlainCodec
from persistence.postgres.statements import batch, batch_of, list_heads, purgeable
from persistence.write_batch import AppendWrite
from sessions.model.audit import Sealer
from sessions.model.journal_types import Append, Due
from sessions.model.types import TenantId
from tests.support.stores.journals import a_command
from tests.support.stores.postgres_server import PostgresServer
from tests.support.stores.postgres_stores import by_hand, grant, opened_at
from tests.support.stores.stores import NOW, append, delta, key, top_of


def a_write(session: str = "s", **fields: object) -> AppendWrite:
    made = Append(key=key(session), fence=1, top=0, records=(delta(1),), at=NOW, **fields)  # type: ignore[arg-type]
    return AppendWrite(PlainCodec(), made, sealer=Sealer(b""), bytes_max=10_000)


@pytest.mark.parametrize("fields", [{}, {"commands": (a_command(1),)}], ids=["records alone", "with a command"])
def test_a_batch_has_a_parameter_for_each_of_its_marks(fields: dict[str, object]) -> None:
    statement, columns = batch_of([a_write("a"), a_write("b", **fields)])
    marks = {int(mark) for mark in re.findall(r"\$(\d+)", statement)}
    assert marks == set(range(1, 3 + len(columns))), "the writer's two, and the columns"
    assert columns[1] == ["a", "b"] and ("commands_in" in statement) == bool(fields)


def test_records_alone_go_by_the_shorter_statement() -> None:
    assert len(batch(whole=False)) < len(batch(whole=True)) < len(batch(whole=True, audited=True))


def test_a_list_is_narrowed_down_by_what_is_given() -> None:
    statement, values = list_heads(TenantId("t"), "u", 5, (7, "s"))
    assert values == ["t", 5, "u", 7, "s"] and "end_user = $3" in statement and "session > $5" in statement
    statement, values = list_heads(TenantId("t"), None, 5, None)
    assert values == ["t", 5] and "$3" not in statement
    idle = Due(deleted_before=NOW, idle_before=NOW, tenant=TenantId("t"), user="u")
    statement, values = purgeable(idle, 5)
    assert "updated_at < $4" in statement and "tenant = $5" in statement
    assert values == [NOW, 5, idle.unlisted_before, NOW, "t", [], "u"]
    assert "updated_at < $4" not in purgeable(Due(deleted_before=NOW), 5)[0]


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
