"""That every statement goes by an index, and that rows are cut into statements of few sizes."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from persistence.codec import PlainCodec
from persistence.sql import end_users
from persistence.sqlite import statements as sql
from persistence.sqlite.database import question_marks
from persistence.sqlite.library import sqlite3
from sessions.model.errors import Internal
from sessions.model.journal_types import Due
from sessions.model.types import TenantId
from tests.support.stores.stores import NOW, a_journal, append, grant, key, opened


async def test_every_statement_goes_by_an_index(tmp_path: Path) -> None:
    """No read and no write of one session may look at all of a table."""
    await a_journal(tmp_path)
    plans: dict[str, str] = {}
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        statements = {
            "advance": sql.advance(4),
            "insert": sql.insert_events(4),
            "patch": sql.patch_heads(2),
            "grant": sql.grant_next(2),
            "head": sql.HEAD,
            "read": sql.READ,
            "load": sql.LOAD,
            "find": sql.FIND_COMMAND,
            "list": sql.list_heads(TenantId("t"), None, 5, (1, "s"))[0],
            "list of a user": sql.list_heads(TenantId("t"), "u", 5, None)[0],
            "open": sql.OPEN_HEADS,
            "purgeable": sql.purgeable(Due(deleted_before=NOW), 5)[0],
            "idle": sql.purgeable(Due(deleted_before=NOW, idle_before=NOW), 5)[0],
            "idle of a tenant": sql.purgeable(Due(deleted_before=NOW, idle_before=NOW, tenant=TenantId("t")), 5)[0],
            "usage of a user": question_marks(end_users._USAGE_ROWS_BEHIND),
            "nameless usage": question_marks(end_users._NAMELESS_USAGE),
            "purge": sql.PURGE_EVENTS,
            "purge commands": sql.PURGE_COMMANDS,
        }
        for name, statement in statements.items():
            count = max((int(n) for n in re.findall(r"\?(\d+)", statement)), default=statement.count("?"))
            rows = file.execute(f"EXPLAIN QUERY PLAN {statement}", [None] * count).fetchall()
            plans[name] = "\n".join(row[3] for row in rows)
    for name, plan in plans.items():
        for table in ("heads", "events", "commands", "snapshots", "usage"):
            assert f"SCAN {table}" not in plan.replace(f"SCAN {table} USING INDEX {table}_", ""), f"{name}: {plan}"
    assert "heads_listed" in plans["list"] and "TEMP B-TREE" not in plans["list"]
    assert "heads_listed_by_user" in plans["list of a user"] and "TEMP B-TREE" not in plans["list of a user"]


def test_a_batch_is_cut_into_powers_of_two_and_filled_up_with_rows_that_equal_nothing() -> None:
    rows = [(n, b"x") for n in range(sql.VALUES_ROWS_MAX + 3)]
    (first, all_of_it), (second, rest) = sql.chunks(rows)
    assert (first, len(all_of_it)) == (sql.VALUES_ROWS_MAX, 2 * sql.VALUES_ROWS_MAX)
    assert (second, rest) == (4, [256, b"x", 257, b"x", 258, b"x", None, 0])
    assert {type(value) for value in rest} == {int, bytearray, type(None)}
    assert sql.chunks([]) == []


async def test_a_hole_in_a_log_is_damage_and_no_shorter_log(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await append(journal, await grant(journal), 0, 5)
        with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
            file.execute('DELETE FROM events WHERE "offset" = 3')
            file.commit()
        with pytest.raises(Internal) as caught:
            await journal.read(key(), after=0, limit=9, bytes_max=10**6)
        assert caught.value.code == "journal_hole"
    codec = PlainCodec()
    assert sql.records_of(codec, key(), ("", "[]", None), after=7) == ()
    assert sql.snapshot_of(codec, key(), ("", "[]", None)) is None
