"""Usage, prices, and rows held against logs."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.billing.metering import DAY_MS, UsageEntry, UsageGroup, UsageTotal, allowed_query, day_text, total_public
from sessions.billing.prices import PICOS, PriceBook, amount, read_prices, sum_public
from sessions.billing.reconcile import DIFFERENCES_MAX, ReconciliationReport, reconcile
from sessions.model.errors import BadInput, Forbidden
from sessions.model.journal_types import Page, UsageRow
from sessions.model.types import Principal, ResponseId, SessionKey, TenantId, UnixMs, Usage
from tests.support.machine.machine_fixture import KEY, Ground
from transport.cli.settings import BadSetting
from transport.cli.start.config_files import PriceFile

KEY_OF_A_USER = Principal(tenant=TenantId("acme"), key_id="k", user="ana", role="user", scopes=("usage",))
KEY_OF_A_TENANT = msgspec.structs.replace(KEY_OF_A_USER, user=None, role="service")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"by": "colour"}, "group_by"),
        ({"first_day": "yesterday"}, "from"),
        ({"last_day": "1969-12-31"}, "to"),
        ({"first_day": "2026-12-02", "last_day": "2026-12-01"}, "to"),
    ],
)
def test_malformed_queries_say_which_parameter(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadInput) as caught:
        allowed_query(KEY_OF_A_TENANT, **fields)
    assert caught.value.param == param


LIST = """
currency = "USD"

[[prices]]
model = "small"
input = 0.15
cached = 0.05
output = 0.60

[[prices]]
model = "small"
effective = 2026-12-01
input = "0.30"
output = 1

[[prices]]
model = "*"
input = 2
output = 8.123456
""".replace('"0.30"', "0.30")


def at(day: str) -> UnixMs:
    return UnixMs(int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000))


def test_a_response_costs_what_its_day_s_price_says() -> None:
    prices = read_prices(LIST)
    usage = Usage(input_tokens=1_000_000, output_tokens=500_000, cached_tokens=400_000)
    before = prices.cost("small", usage, at("2026-11-30T23:59:59"))
    after = prices.cost("small", usage, at("2026-12-01"))
    other = prices.cost("large", usage, at("2026-01-01"))
    assert before is not None and after is not None and other is not None
    assert before.public() == {"amount": "0.41", "currency": "USD", "price_version": prices.version}
    assert amount(after.picos) == "0.8"  # cached as input: the list says nothing of cached
    assert amount(other.picos) == "6.061728"
    assert (
        read_prices('currency="EUR"\n[[prices]]\nmodel="small"\ninput=1\noutput=1').cost("x", usage, at("2026-01-01"))
        is None
    )


def test_a_model_s_price_is_shown_per_million_tokens_and_only_where_there_is_one() -> None:
    book = PriceBook(read_prices(LIST))
    shown = book.public("small", at("2026-11-30"))
    assert shown is not None and shown["currency"] == "USD" and shown["output"] == 0.6
    assert (shown["input"], shown["cached_input"]) == (0.15, 0.05)
    later = book.public("small", at("2026-12-01"))
    assert later is not None and later["input"] != 0.15
    only = PriceBook(read_prices('currency="EUR"\n[[prices]]\nmodel="small"\ninput=1\noutput=1'))
    assert only.public("x", at("2026-01-01")) is None and PriceBook().public("small", at("2026-01-01")) is None


def test_the_version_is_of_what_a_list_says() -> None:
    said_otherwise = "# a comment\n" + LIST.replace("0.15", "0.150").replace(
        "effective = 2026-12-01\n", "effective = 2026-12-01T00:00:00Z\n"
    )
    assert read_prices(said_otherwise).version == read_prices(LIST).version
    assert read_prices(LIST.replace("0.15", "0.16")).version != read_prices(LIST).version
    assert read_prices(LIST.replace("USD", "EUR")).version != read_prices(LIST).version


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**12))
def test_money_is_exact(fresh: int, cached: int, output: int, micros: int) -> None:
    price = Decimal(micros) / 10**6
    prices = read_prices(f'currency = "USD"\n[[prices]]\nmodel = "m"\ninput = {price:f}\noutput = {price:f}')
    cost = prices.cost("m", Usage(input_tokens=fresh + cached, output_tokens=output, cached_tokens=cached), UnixMs(0))
    assert cost is not None
    shown = cost.public()["amount"]
    assert isinstance(shown, str)
    assert Decimal(shown) == price * (fresh + cached + output) / 10**6
    both = sum_public([cost.public(), cost.public()])
    assert both is not None and both["amount"] == amount(2 * cost.picos)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("currency = ", "not TOML"),
        ('currency = "usd"\n[[prices]]\nmodel="m"\ninput=1\noutput=1', "three capital letters"),
        ('currency = "USD"', "no [[prices]]"),
        ('currency = "USD"\nprices = 3', "no [[prices]]"),
        ('currency = "USD"\nfoo = 1\n[[prices]]\nmodel="m"\ninput=1\noutput=1', "'foo'"),
        ('currency = "USD"\n[[prices]]\ninput=1\noutput=1', "price 1: `model`"),
        ('currency = "USD"\n[[prices]]\nmodel="m"\noutput=1', "price 1 ('m'): `input` is missing"),
        ('currency = "USD"\n[[prices]]\nmodel="m"\ninput="1"\noutput=1', "input = '1'"),
        ('currency = "USD"\n[[prices]]\nmodel="m"\ninput=true\noutput=1', "input = True"),
        ('currency = "USD"\n[[prices]]\nmodel="m"\ninput=-1\noutput=1', "at least 0"),
        ('currency = "USD"\n[[prices]]\nmodel="m"\ninput=nan\noutput=1', "at least 0"),
        ('currency = "USD"\n[[prices]]\nmodel="m"\ninput=1e300\noutput=1', "at most"),
        ('currency = "USD"\n[[prices]]\nmodel="m"\ninput=0.0000001\noutput=1', "6 decimals"),
        ('currency = "USD"\n[[prices]]\nmodel="m"\ninput=1\noutput=1\neffective="2026-01-01"', "without quotes"),
        ('currency = "USD"\n[[prices]]\nmodel="m"\ninput=1\noutput=1\nprompt=2', "'prompt'"),
        ('currency = "USD"\n' + '[[prices]]\nmodel="m"\ninput=1\noutput=1\n' * 2, "price 2: a second one"),
    ],
)
async def test_a_malformed_list_is_refused_and_the_old_one_stays(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(LIST)
    prices = PriceFile(str(path))
    old = prices.book.current
    path.write_text(text)
    with pytest.raises(BadSetting) as refused:
        PriceFile(str(path))
    assert wrong in str(refused.value)
    assert not await prices.watcher.look() and prices.book.current is old
    path.write_text(LIST.replace("0.15", "0.16"))
    assert await prices.watcher.look()
    assert prices.book.current is not None and prices.book.current != old


class Books:
    """The rows and the log of one session; rows that are `late` come to light when they are read again."""

    def __init__(self, ground: Ground, rows: list[UsageRow], *, late: list[UsageRow] | None = None) -> None:
        self._ground, self._rows, self._late = ground, rows, late or []

    async def session_keys(self, *, after: SessionKey | None, limit: int) -> list[SessionKey]:
        return [KEY] if after is None else []

    async def of_session(self, key: SessionKey) -> list[UsageEntry]:
        entries = [UsageEntry(seq, KEY, row) for seq, row in enumerate(self._rows, 1)]
        self._rows, self._late = self._rows + self._late, []
        return entries

    async def without_log(self) -> int:
        return 2

    async def read(self, key: SessionKey, *, after: int, limit: int, bytes_max: int) -> Page:
        return Page(self._ground.head(), tuple(self._ground.records[after : after + 3]))


@pytest.fixture
def ground() -> Ground:
    made = Ground()
    made.create()
    for _ in range(2):
        response_id = made.say().response_id
        assert response_id is not None
        made.text(response_id)
        made.text(response_id)
        made.finish(response_id)
    return made


async def report(ground: Ground, rows: list[UsageRow], **more: Any) -> ReconciliationReport:
    books: Any = Books(ground, rows, late=more.pop("late", None))
    return await reconcile(books, books, **more)


async def test_missing_and_doubled_rows_differ(ground: Ground) -> None:
    first, second = ground.usage
    found = await report(ground, [first, first])
    assert [(each.response_id, each.what) for each in found.differences] == [
        (first.response_id, "has more than one row"),
        (second.response_id, "ended without a row"),
    ]


async def test_a_response_that_never_ran_needs_no_row(ground: Ground) -> None:
    ground.say()
    queued = ground.say(queue=True).response_id
    assert queued is not None
    ground.cancel(queued)
    assert (await report(ground, ground.usage)).num_differences == 0


def test_differences_are_counted_beyond_what_is_kept() -> None:
    found = ReconciliationReport()
    for _ in range(DIFFERENCES_MAX + 5):
        found.differ(KEY, ResponseId("r"), "x")
    assert (len(found.differences), found.num_differences) == (DIFFERENCES_MAX, DIFFERENCES_MAX + 5)


def test_amounts_have_neither_exponents_nor_zeros_at_their_end() -> None:
    assert [amount(each) for each in (0, 1, PICOS, 15 * PICOS // 10, -PICOS // 4)] == [
        "0",
        "0.000000000001",
        "1",
        "1.5",
        "-0.25",
    ]


OPERATOR = msgspec.structs.replace(KEY_OF_A_USER, user=None, role="operator", scopes=("usage", "admin"))


def test_a_users_key_sees_that_user_only() -> None:
    query = allowed_query(KEY_OF_A_USER, user="bob")
    assert (query.tenant, query.user) == ("acme", "ana")


def test_a_tenants_key_sees_its_tenant_and_operators_every_one() -> None:
    assert allowed_query(KEY_OF_A_TENANT, user="bob").user == "bob"
    with pytest.raises(Forbidden):
        allowed_query(KEY_OF_A_TENANT, tenant="other")
    assert allowed_query(OPERATOR, tenant="other").tenant == "other"


def test_the_scope_is_needed() -> None:
    with pytest.raises(Forbidden):
        allowed_query(msgspec.structs.replace(KEY_OF_A_TENANT, scopes=("chat",)))


def test_days_are_whole_and_the_last_is_included() -> None:
    query = allowed_query(KEY_OF_A_TENANT, first_day="1970-01-02", last_day="1970-01-02")
    assert (query.since, query.until) == (DAY_MS, 2 * DAY_MS)


def test_a_sum_shows_its_dimensions_and_a_cost_where_it_has_one() -> None:
    total = UsageTotal(
        group=UsageGroup(day=1, user="", model="m", currency="USD"),
        responses=1,
        input_tokens=2,
        cached_tokens=0,
        output_tokens=3,
        reasoning_tokens=0,
        cached_output_tokens=0,
        recomputed_tokens=4,
        withheld_tokens=0,
        cost=1_500_000_000_000,
    )
    shown = total_public(total, ("day", "user"))
    assert (shown["day"], shown["user"], shown["retried_tokens"]) == ("1970-01-02", None, 4)
    assert "model" not in shown and shown["cost"] == {"amount": "1.5", "currency": "USD"}
    free = msgspec.structs.replace(total, group=UsageGroup(model="m"))
    assert total_public(free, ())["cost"] is None
    assert day_text(-1) == ""
