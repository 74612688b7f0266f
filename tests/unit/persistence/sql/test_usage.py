"""Usage in SQL: statements that grow with a query, and money in two halves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from persistence.sql.usage import HALF, entries_statement, total_of, totals_statement
from persistence.sqlite.store import SqliteStore
from sessions.billing.metering import UsageGroup, UsageQuery
from sessions.model.types import UnixMs
from tests.support.stores.journals import ACME, NOW, a_log, a_usage

HUGE = 9 * 10**18


@pytest.mark.parametrize(("by", "group"), [((), "-1"), (("day",), "at / 86400000"), (("user", "model"), "of_model")])
def test_a_sum_groups_by_what_is_named(by: tuple[Any, ...], group: str) -> None:
    statement, values = totals_statement(UsageQuery(tenant=ACME, by=by), None, 7)
    assert group in statement and values == [ACME, 0, 2**53 - 1, 7]
    statement, values = totals_statement(UsageQuery(tenant=ACME, by=by), UsageGroup(1, "u", "m", "USD"), 7)
    assert "($4, $5, $6, $7)" in statement and values[3:] == [1, "u", "m", "USD", 7]


def test_rows_are_narrowed_down_by_what_is_given() -> None:
    statement, values = entries_statement(UsageQuery(tenant=ACME, user="u", model="m"), 5, 7)
    assert "principal_user = $4 AND model = $5 AND seq > $6" in statement and values[3:] == ["u", "m", 5, 7]


def test_halves_of_money_meet_again() -> None:
    total = total_of((-1, "", "", "USD", 2, 1, 2, 3, 4, 5, 6, 7, 18 * HALF, 5))
    assert (total.cost, total.input_tokens, total.withheld_tokens) == (18 * HALF**2 + 5, 1, 7)


async def test_a_sum_may_leave_64_bits_and_marks_stay_as_they_were_made(store: SqliteStore) -> None:
    rows = [msgspec.structs.replace(a_usage(f"r{n}"), cost=HUGE + n, currency="USD") for n in range(3)]
    await a_log(store.journal, "s", 1, usage=tuple(rows))
    (total,) = await store.usage.totals(UsageQuery(tenant=ACME), after=None, limit=9)
    assert total.cost == 3 * HUGE + 3
    first, second, third = await store.usage.unrelayed(limit=9)
    await store.usage.mark_relayed([], at=NOW)
    for at in (1, 2):
        await store.usage.mark_relayed([first.seq, third.seq], at=UnixMs(NOW + at))
    assert await store.usage.unrelayed(limit=9) == [second]
    marked = await store.database.rows("SELECT relayed_at FROM usage ORDER BY seq")
    assert [at for (at,) in marked] == [NOW + 1, None, NOW + 1]
