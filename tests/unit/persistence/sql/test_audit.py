"""The audit log in SQL: rows about somebody by their index, and the floor that lets rows go."""

from __future__ import annotations

import pytest

from persistence.sqlite.library import sqlite3
from persistence.sqlite.store import SqliteStore
from sessions.model.errors import BadInput
from sessions.model.types import TenantId
from tests.support.stores.audit_tables import a_row, sql
from tests.support.stores.journals import ACME


async def test_rows_about_somebody_go_by_their_index(store: SqliteStore) -> None:
    log = store.audit
    await log.record(ACME, [a_row(n, user=user) for n, user in enumerate((None, "mary", "bob", "mary"))])
    mary, bob = (log.sealer.pseudonym(ACME, user) for user in ("mary", "bob"))
    assert [row.seq for row in await log.rows(ACME, after=2, limit=9, about=[mary, bob])] == [3, 4]
    assert [row.seq for row in await log.rows(ACME, after=0, limit=1, about=[mary])] == [2]
    assert await log.rows(ACME, after=0, limit=9, about=[""]) == []
    with pytest.raises(BadInput):
        await log.rows(ACME, after=0, limit=9, about=["\0"])


async def test_a_chain_without_rows_has_neither_head_nor_floor(store: SqliteStore) -> None:
    nobody = TenantId("nobody")
    await store.audit.record(nobody, [])
    assert await store.audit.head(nobody) is None and await store.audit.floor(nobody) is None
    assert await store.audit.tenants() == []


async def test_rows_go_only_below_the_floor(store: SqliteStore) -> None:
    log = store.audit
    await log.record(ACME, [a_row(n) for n in range(4)])
    rows = await log.rows(ACME, after=0, limit=9)
    with pytest.raises(Exception, match="cannot be stored") as caught:
        await sql(store, "DELETE FROM audit WHERE seq = 1")
    assert isinstance(caught.value.__cause__, sqlite3.IntegrityError)
    floor = log.sealer.floor(rows[1], rows[1].at)
    assert await log.trim(ACME, a_row(9), expected=None, floor=floor)
    assert not await log.trim(ACME, a_row(9), expected=None, floor=floor), "it has moved"
    assert [row.seq for row in await log.rows(ACME, after=0, limit=9)] == [3, 4, 5]
    assert await log.floor(ACME) == floor
