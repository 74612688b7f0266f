"""The contract of the UsageStore port, on every implementation: sums, pages, the outbox, and the logs beside them."""

from __future__ import annotations

import msgspec
import pytest

from sessions.billing.metering import DAY_MS, UsageGroup, UsageQuery, UsageStore
from sessions.billing.reconcile import reconcile
from sessions.model.events import Private, Record, ResponseBody, ResponseCompleted, ResponseCreated
from sessions.model.journal_types import Due, UsageRow
from sessions.model.types import Principal, ResponseId, Sampling, TenantId, UnixMs, Usage, pack_tokens
from sessions.ports import Journal
from sessions.store import Store
from tests.support.stores.journals import ACME, NOW, a_log, a_usage, an_append, delta, grant, key, patch, purge

HUGE = 9 * 10**18  # two of them leave 64 bits


@pytest.fixture
def books(store: Store) -> UsageStore:
    return store.usage


def row(
    response: str, *, user: str | None = "u", model: str = "m", day: int = 0, tenant: str = ACME, cost: int = 0
) -> UsageRow:
    return msgspec.structs.replace(
        a_usage(response, at=NOW + day * DAY_MS, tenant=tenant),
        principal=Principal(tenant=TenantId(tenant), key_id="k1", user=user, role="service"),
        model=model,
        price_version="v1" if cost else "",
        currency="USD" if cost else "",
        cost=cost,
    )


async def fill(journal: Journal) -> None:
    rows = (row("r1", cost=HUGE), row("r2", cost=HUGE), row("r3", user=None), row("r4", user="v", day=1))
    await a_log(journal, "s", 1, usage=rows)
    await a_log(journal, "t", 1, usage=(row("r5", model="n", day=1), row("r6", model="n", day=1)))
    await a_log(journal, "u", 1, tenant="other", usage=(row("r1", tenant="other"),))


def asked(**fields: object) -> UsageQuery:
    return msgspec.convert({"tenant": ACME, **fields}, UsageQuery)


async def test_sums_are_by_day_user_and_model_and_of_one_tenant(journal: Journal, books: UsageStore) -> None:
    await fill(journal)
    day = NOW // DAY_MS
    totals = await books.totals(asked(), after=None, limit=100)
    assert [(total.group, total.responses, total.cost) for total in totals] == [
        (UsageGroup(day, "", "m", ""), 1, 0),
        (UsageGroup(day, "u", "m", "USD"), 2, 2 * HUGE),
        (UsageGroup(day + 1, "u", "n", ""), 2, 0),
        (UsageGroup(day + 1, "v", "m", ""), 1, 0),
    ]
    assert (totals[1].input_tokens, totals[1].output_tokens, totals[1].cached_tokens) == (10, 14, 6)
    assert (totals[1].reasoning_tokens, totals[1].recomputed_tokens, totals[1].withheld_tokens) == (2, 4, 8)
    by_model = await books.totals(asked(by=("model",)), after=None, limit=100)
    assert [(total.group.model, total.group.currency, total.responses) for total in by_model] == [
        ("m", "", 2),
        ("m", "USD", 2),
        ("n", "", 2),
    ]
    assert {total.group.day for total in by_model} == {-1}
    assert await books.totals(asked(tenant="nobody"), after=None, limit=9) == []


async def test_sums_and_rows_are_narrowed_down(journal: Journal, books: UsageStore) -> None:
    await fill(journal)
    found = await books.totals(asked(user="u", by=("user",)), after=None, limit=9)
    assert sum(total.responses for total in found) == 4
    assert {total.group.user for total in found} == {"u"}
    (found_model,) = await books.totals(asked(model="n"), after=None, limit=9)
    assert found_model.responses == 2
    since, until = UnixMs(NOW + 1), UnixMs(NOW + DAY_MS)
    assert await books.totals(asked(since=since, until=until), after=None, limit=9) == []
    rows = await books.entries(asked(since=until), after=0, limit=9)
    assert [entry.row.response_id for entry in rows] == ["r4", "r5", "r6"]


async def test_pages_of_sums_and_rows_meet_without_a_gap(journal: Journal, books: UsageStore) -> None:
    await fill(journal)
    whole = await books.totals(asked(), after=None, limit=100)
    pages = []
    after: UsageGroup | None = None
    while page := await books.totals(asked(), after=after, limit=1):
        pages += page
        after = page[-1].group
    assert pages == whole
    rows = await books.entries(asked(), after=0, limit=100)
    assert [entry.row.response_id for entry in rows] == ["r1", "r2", "r3", "r4", "r5", "r6"]
    assert rows[0].row == row("r1", cost=HUGE)
    assert rows[0].key == key("s")
    assert [entry.seq for entry in rows] == sorted({entry.seq for entry in rows})
    assert await books.entries(asked(), after=rows[2].seq, limit=2) == rows[3:5]
    assert await books.of_session(key("t")) == rows[4:]


async def test_rows_leave_the_outbox_when_they_are_marked_and_not_before(journal: Journal, books: UsageStore) -> None:
    await fill(journal)
    waiting = await books.unrelayed(limit=100)
    assert [entry.row.response_id for entry in waiting] == ["r1", "r2", "r3", "r4", "r5", "r6", "r1"]
    assert await books.unrelayed(limit=2) == waiting[:2]
    await books.mark_relayed([entry.seq for entry in waiting[:3]], at=NOW)
    assert await books.unrelayed(limit=100) == waiting[3:]
    await books.mark_relayed([entry.seq for entry in waiting], at=NOW)
    await books.mark_relayed([], at=NOW)
    assert await books.unrelayed(limit=100) == []


async def test_every_session_with_a_log_is_named_and_rows_outlive_them(journal: Journal, books: UsageStore) -> None:
    await fill(journal)
    head = await a_log(journal, "z", 1, usage=(row("r9"),))
    await journal.append(an_append(head, 1, head=patch(deleted_at=NOW)))
    keys = [key("s"), key("t"), key("z"), key("u", "other")]
    assert await books.session_keys(after=None, limit=100) == keys
    assert await books.session_keys(after=keys[0], limit=2) == keys[1:3]
    assert await books.without_log() == 0
    await purge(journal, Due(deleted_before=UnixMs(NOW + 1)), commands_before=UnixMs(0), limit=9)
    assert await books.session_keys(after=keys[1], limit=9) == [keys[3]]
    assert await books.without_log() == 1


RESPONSE = ResponseId("resp_1")


def an_answer(num_deltas: int, *, said: Usage, cost: str | None = None) -> tuple[Record, ...]:
    """Created, deltas of two tokens each, completed."""
    body = ResponseBody(id=RESPONSE, created_at=NOW, status="in_progress", model="m", parent_id=None)
    usage = said.public()
    if cost is not None:
        usage["cost"] = {"amount": cost, "currency": "USD", "price_version": "v1"}
    ended = msgspec.structs.replace(body, status="completed", usage=usage)
    whole = [token for offset in range(2, 2 + num_deltas) for token in (offset, offset + 1)]
    return (
        Record(
            1,
            NOW,
            ResponseCreated(response_id=RESPONSE, sequence_number=0, response=body),
            Private(sampling=Sampling()),
        ),
        *(delta(offset) for offset in range(2, 2 + num_deltas)),
        Record(
            2 + num_deltas,
            NOW,
            ResponseCompleted(response_id=RESPONSE, sequence_number=9, response=ended),
            Private(tokens=pack_tokens(whole)),
        ),
    )


@pytest.mark.parametrize(
    ("changed", "differs"),
    [
        ({}, ""),
        (
            {"usage": Usage(input_tokens=5, output_tokens=6, cached_tokens=2)},
            "cached_tokens: the row says 2, the log 3",
        ),
        (
            {"usage": Usage(input_tokens=5, output_tokens=7, cached_tokens=3)},
            "output_tokens: the row says 7, the log 6",
        ),
        ({"cost": 1}, "cost: the row says 1, the log 1500000000000"),
        ({"status": "failed"}, "status: the row says failed"),
        ({"response_id": ResponseId("resp_2")}, "no end in the log"),
    ],
)
async def test_rows_are_held_against_logs(
    journal: Journal, books: UsageStore, changed: dict[str, object], differs: str
) -> None:
    used = Usage(input_tokens=5, output_tokens=6, cached_tokens=3)
    billed = msgspec.structs.replace(row("resp_1", cost=15 * 10**11), usage=used, withheld_tokens=0, status="completed")
    billed = msgspec.structs.replace(billed, **changed)
    head = await grant(journal, key("s"))
    await journal.append(an_append(head, records=an_answer(3, said=used, cost="1.5"), usage=(billed,)))
    found = await reconcile(journal, books)
    assert found.sessions == 1
    assert found.logged.output_tokens == found.logged.ledger_tokens == 6
    assert found.logged.cost == 15 * 10**11
    if differs:
        assert any(differs in str(each) for each in found.differences), found.differences
    else:
        assert found.num_differences == 0
        assert found.billed == found.logged
    assert (await reconcile(journal, books, tenant=TenantId("other"))).sessions == 0


async def test_an_end_without_a_row_and_unbilled_tokens_are_found(journal: Journal, books: UsageStore) -> None:
    used = Usage(input_tokens=5, output_tokens=4)
    head = await grant(journal, key("s"))
    await journal.append(an_append(head, records=an_answer(3, said=used)))
    found = await reconcile(journal, books)
    assert [each.what for each in found.differences] == ["ended without a row"]
    billed = msgspec.structs.replace(row("resp_1"), usage=used, withheld_tokens=0)
    await journal.append(an_append(head, top=5, records=(), usage=(billed,)))
    found = await reconcile(journal, books)
    assert [each.what for each in found.differences] == ["6 tokens were released and 4 are billed"]


async def test_a_row_of_no_session_is_recorded_once_and_relayed_like_others(books: UsageStore) -> None:
    where = key("~embeddings")
    await books.record(where, row("embd_1"))
    await books.record(where, row("embd_1", model="another"))
    await books.record(where, row("embd_2", day=1))
    (first, second) = await books.of_session(where)
    assert (first.row, second.row) == (row("embd_1"), row("embd_2", day=1))
    assert [entry.seq for entry in await books.unrelayed(limit=9)] == [first.seq, second.seq]
    assert sum(total.responses for total in await books.totals(asked(), after=None, limit=9)) == 2
    assert await books.without_log() == 2
