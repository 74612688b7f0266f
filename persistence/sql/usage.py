"""Usage rows in SQLite and PostgreSQL: sums, pages, the outbox. The port is `sessions.billing.metering.UsageStore`.

Rows are written by the appends that end responses, or by `record`, and only `relayed_at` ever changes.

Amounts of money are summed in two halves, so that no sum needs more than 64 bits; PostgreSQL's numeric sums are cast
back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from persistence.sql.script import Parameters, SqlDatabase, one_query
from persistence.validation import FIRST_KEY, check_key, check_text
from persistence.write_batch import USAGE_COLUMNS, usage_row
from sessions.billing.metering import DAY_MS, UsageEntry, UsageGroup, UsageQuery, UsageTotal
from sessions.model.journal_types import UsageRow
from sessions.model.types import Principal, ResponseId, SessionId, SessionKey, TenantId, UnixMs, Usage

HALF: Final = 10**9  # costs are summed in two parts: high * HALF + low

_SUMMED: Final = (
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cached_output_tokens",
    "recomputed_tokens",
    "withheld_tokens",
)
_COLUMNS: Final = f"seq, {USAGE_COLUMNS}"

_OF_SESSION: Final = f"SELECT {_COLUMNS} FROM usage WHERE tenant = $1 AND session = $2 ORDER BY seq"
_UNRELAYED: Final = f"SELECT {_COLUMNS} FROM usage WHERE relayed_at IS NULL ORDER BY seq LIMIT $1"
_SESSION_KEYS: Final = (
    "SELECT tenant, session FROM heads WHERE (tenant, session) > ($1, $2) AND tenant <> ''"
    " ORDER BY tenant, session LIMIT $3"
)
_WITHOUT_LOG: Final = (
    "SELECT count(*) FROM usage WHERE NOT EXISTS (SELECT 1 FROM heads"
    " WHERE heads.tenant = usage.tenant AND heads.session = usage.session)"
)


_MARKS: Final = ", ".join(f"${1 + number}" for number in range(USAGE_COLUMNS.count(",") + 1))
_RECORD: Final = f"INSERT INTO usage ({USAGE_COLUMNS}) VALUES ({_MARKS}) ON CONFLICT DO NOTHING"


def _where(statement: Parameters, query: UsageQuery) -> str:
    put = statement.put
    where = f"tenant = {put(query.tenant)} AND at >= {put(query.since)} AND at < {put(query.until)}"
    if query.user is not None:
        where += f" AND principal_user = {put(query.user)}"
    if query.model is not None:
        where += f" AND model = {put(query.model)}"
    return where


def totals_statement(query: UsageQuery, after: UsageGroup | None, limit: int) -> tuple[str, list[Any]]:
    statement = Parameters()
    day = f"at / {DAY_MS}" if "day" in query.by else "-1"
    user = "coalesce(principal_user, '')" if "user" in query.by else "''"
    model = "model" if "model" in query.by else "''"
    sums = ", ".join(f"CAST(sum({name}) AS bigint) AS {name}" for name in _SUMMED)
    inner = (
        f"SELECT CAST({day} AS bigint) AS day, {user} AS end_user, {model} AS of_model, currency,"
        f" count(*) AS responses, {sums},"
        f" CAST(sum(cost / {HALF}) AS bigint) AS high, CAST(sum(cost % {HALF}) AS bigint) AS low"
        f" FROM usage WHERE {_where(statement, query)} GROUP BY 1, 2, 3, 4"
    )
    behind = ""
    if after is not None:
        marks = ", ".join(statement.put(value) for value in msgspec.structs.astuple(after))
        behind = f" WHERE (day, end_user, of_model, currency) > ({marks})"
    text = (
        f"SELECT * FROM ({inner}) AS groups{behind} ORDER BY day, end_user, of_model, currency"
        f" LIMIT {statement.put(limit)}"
    )
    return text, statement.values


def entries_statement(query: UsageQuery, after: int, limit: int) -> tuple[str, list[Any]]:
    statement = Parameters()
    where = f"{_where(statement, query)} AND seq > {statement.put(after)}"
    return f"SELECT {_COLUMNS} FROM usage WHERE {where} ORDER BY seq LIMIT {statement.put(limit)}", statement.values


def entry_of(row: Any) -> UsageEntry:
    seq, tenant, session, response, key_id, user, role, model, status, *numbers = tuple(row)
    given, made, cached, reasoning, given_again, recomputed, withheld, at, version, currency, cost = numbers
    return UsageEntry(
        seq,
        SessionKey(TenantId(tenant), SessionId(session)),
        UsageRow(
            response_id=ResponseId(response),
            principal=Principal(tenant=TenantId(tenant), key_id=key_id, user=user, role=cast(Any, role)),
            model=model,
            usage=Usage(given, made, cached, reasoning, given_again),
            status=status,
            recomputed_tokens=recomputed,
            withheld_tokens=withheld,
            at=UnixMs(at),
            price_version=version,
            currency=currency,
            cost=cost,
        ),
    )


def total_of(row: Any) -> UsageTotal:
    day, user, model, currency, responses, *sums, high, low = tuple(row)
    return UsageTotal(
        group=UsageGroup(day, user, model, currency),
        responses=responses,
        **dict(zip(_SUMMED, sums, strict=True)),
        cost=high * HALF + low,
    )


class SqlUsage:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def record(self, key: SessionKey, row: UsageRow) -> None:
        check_key(key)
        check_text(row.response_id, row.principal.key_id, row.principal.user, row.model)
        await self._database.run(lambda: one_query(_RECORD, usage_row(key, row)))

    async def totals(self, query: UsageQuery, *, after: UsageGroup | None, limit: int) -> list[UsageTotal]:
        check_text(query.tenant, query.user, query.model, *((after.user, after.model, after.currency) if after else ()))
        return [total_of(row) for row in await self._database.rows(*totals_statement(query, after, limit))]

    async def entries(self, query: UsageQuery, *, after: int, limit: int) -> list[UsageEntry]:
        check_text(query.tenant, query.user, query.model)
        return [entry_of(row) for row in await self._database.rows(*entries_statement(query, after, limit))]

    async def of_session(self, key: SessionKey) -> list[UsageEntry]:
        check_key(key)
        return [entry_of(row) for row in await self._database.rows(_OF_SESSION, key)]

    async def session_keys(self, *, after: SessionKey | None, limit: int) -> list[SessionKey]:
        rows = await self._database.rows(_SESSION_KEYS, (*(after or FIRST_KEY), limit))
        return [SessionKey(TenantId(tenant), SessionId(session)) for tenant, session in rows]

    async def without_log(self) -> int:
        ((count,),) = await self._database.rows(_WITHOUT_LOG)
        return int(count)

    async def unrelayed(self, *, limit: int) -> list[UsageEntry]:
        return [entry_of(row) for row in await self._database.rows(_UNRELAYED, (limit,))]

    async def mark_relayed(self, seqs: Sequence[int], *, at: UnixMs) -> None:
        if seqs:
            marks = ", ".join(f"${2 + n}" for n in range(len(seqs)))
            statement = f"UPDATE usage SET relayed_at = $1 WHERE relayed_at IS NULL AND seq IN ({marks})"
            await self._database.run(lambda: one_query(statement, (at, *seqs)))
