"""The audit log in memory: rows of one tenant, heads, and the floor that trimming moves."""

from __future__ import annotations

import pytest

from persistence.memory.store import MemoryStore
from sessions.model.audit import AuditFloor
from sessions.model.types import TenantId
from tests.support.stores.audit_tables import BETA, a_row
from tests.support.stores.journals import ACME


async def test_rows_come_in_order_of_one_tenant_and_about_whom_they_are(store: MemoryStore) -> None:
    log = store.audit
    assert await log.head(ACME) is None and await log.floor(ACME) is None and await log.tenants() == []
    await log.record(ACME, [a_row(n, user="mary" if n == 2 else None) for n in range(4)])
    await log.record(BETA, [a_row(9)])
    rows = await log.rows(ACME, after=1, limit=2)
    assert [row.seq for row in rows] == [2, 3]
    assert await log.tenants() == [ACME, BETA]
    mary = log.sealer.pseudonym(ACME, "mary")
    (about,) = await log.rows(ACME, after=0, limit=9, about=[mary, "x"])
    assert about.seq == 3 and about.about == mary
    assert await log.rows(ACME, after=0, limit=9, about=[""]) == [], "rows about nobody are nobody's"
    head = await log.head(ACME)
    last = (await log.rows(ACME, after=3, limit=9))[-1]
    assert head is not None and (head.seq, head.mac) == (4, last.mac)


@pytest.mark.parametrize("raced", [False, True])
async def test_a_floor_moves_only_from_what_it_was_taken_for(store: MemoryStore, raced: bool) -> None:
    log = store.audit
    await log.record(ACME, [a_row(n) for n in range(4)])
    rows = await log.rows(ACME, after=0, limit=9)
    floor = log.sealer.floor(rows[1], rows[1].at)
    expected = AuditFloor(1, b"", 0, "", b"") if raced else None
    assert await log.trim(ACME, a_row(9), expected=expected, floor=floor) is not raced
    left = [row.seq for row in await log.rows(ACME, after=0, limit=9)]
    assert left == ([1, 2, 3, 4] if raced else [3, 4, 5]), "a row says that others went"
    assert await log.floor(ACME) == (None if raced else floor)
    assert await log.rows(TenantId("nobody"), after=0, limit=9) == []
