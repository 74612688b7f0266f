"""Usage rows in memory: sums without overflow, pages, and the outbox."""

from __future__ import annotations

import msgspec

from persistence.memory.store import MemoryStore
from sessions.billing.metering import UsageGroup, UsageQuery
from sessions.model.types import UnixMs
from tests.support.stores.journals import ACME, NOW, a_log, a_usage, key

HUGE = 9 * 10**18


async def test_sums_leave_out_what_a_query_does_and_hold_huge_costs(store: MemoryStore) -> None:
    rows = [msgspec.structs.replace(a_usage(f"r{n}"), cost=HUGE + n, currency="USD") for n in range(3)]
    await a_log(store.journal, "s", 1, usage=tuple(rows))
    query = UsageQuery(tenant=ACME, by=("model",))
    (total,) = await store.usage.totals(query, after=None, limit=9)
    assert (total.group, total.responses, total.cost) == (UsageGroup(-1, "", "m", "USD"), 3, 3 * HUGE + 3)
    assert await store.usage.totals(query, after=total.group, limit=9) == []
    for narrowed in ({"user": "x"}, {"model": "x"}, {"since": NOW + 1}, {"until": NOW}):
        assert await store.usage.totals(UsageQuery(tenant=ACME, **narrowed), after=None, limit=9) == []
    (by_user,) = await store.usage.totals(UsageQuery(tenant=ACME, by=("user",)), after=None, limit=9)
    assert by_user.group.user == "ü" and by_user.group.model == ""


async def test_rows_leave_the_outbox_when_they_are_marked(store: MemoryStore) -> None:
    await a_log(store.journal, "s", 1, usage=tuple(a_usage(f"r{n}") for n in range(3)))
    first, second, third = await store.usage.unrelayed(limit=9)
    await store.usage.mark_relayed([], at=NOW)
    await store.usage.mark_relayed([first.seq, third.seq], at=UnixMs(NOW + 1))
    assert await store.usage.unrelayed(limit=9) == [second]
    assert await store.usage.of_session(key("s")) == [first, second, third]
    assert await store.usage.entries(UsageQuery(tenant=ACME), after=first.seq, limit=1) == [second]
    assert await store.usage.session_keys(after=None, limit=9) == [key("s")]
    assert await store.usage.session_keys(after=key("s"), limit=9) == [] and await store.usage.without_log() == 0
