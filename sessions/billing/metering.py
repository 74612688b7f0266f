"""The usage of responses: rows, sums and the outbox. The journal has one row per response, written in the transaction
of its terminal event (`sessions.machine.responses` makes it); here are the queries over the rows.

`UsageStore` is a port beside `Journal`, on the same store: every driver of `persistence` implements it, and
`tests/contract/store/test_usage.py` is its suite. Nothing here changes a row but `mark_relayed`. Usage without a
session (embeddings) gets its rows by `record`, under a name that no session has.

Sums of money are whole picos (`sessions.billing.prices`): a sum of sums is the sum of the rows, whatever the paging.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Final, Literal, Protocol

import msgspec

from sessions.billing.prices import amount
from sessions.model.authorization import demand, tenant_for
from sessions.model.errors import BadInput
from sessions.model.journal_types import UsageRow
from sessions.model.types import Json, Principal, SessionKey, TenantId, UnixMs

DAY_MS: Final = 86_400_000
PAGE_MAX: Final = 1_000
Dimension = Literal["day", "user", "model"]
DIMENSIONS: Final[tuple[Dimension, ...]] = ("day", "user", "model")


class UsageEntry(msgspec.Struct, frozen=True):
    """A usage row with its number and its session. A row gets its number when its transaction begins to write, so if
    several transactions write at once (PostgreSQL), a smaller number may appear after a larger one."""

    seq: int
    key: SessionKey
    row: UsageRow


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query of usage rows with since <= at < until. A field that is None does not restrict it."""

    tenant: TenantId
    user: str | None = None
    model: str | None = None
    since: UnixMs = UnixMs(0)
    until: UnixMs = UnixMs(2**53 - 1)
    by: tuple[Dimension, ...] = DIMENSIONS


class UsageGroup(msgspec.Struct, frozen=True, order=True):
    """The dimensions of a sum, and the position of a page. A dimension that was not requested is empty, as is a user or
    currency that a row does not have."""

    day: int = -1  # days since 1970
    user: str = ""
    model: str = ""
    currency: str = ""


class UsageTotal(msgspec.Struct, frozen=True, kw_only=True):
    group: UsageGroup
    responses: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cached_output_tokens: int
    recomputed_tokens: int
    withheld_tokens: int
    cost: int  # picos


class UsageStore(Protocol):
    """The usage rows of a journal. All methods raise Unavailable; those that write also OutcomeUnknown. The callers
    limit the size of pages."""

    async def record(self, key: SessionKey, row: UsageRow) -> None:
        """Adds a row for usage without an append (embeddings). If the response has a row already, that one stays."""
        ...

    async def totals(self, query: UsageQuery, *, after: UsageGroup | None, limit: int) -> list[UsageTotal]:
        """Returns sums in the order of their groups, from behind the group `after` on."""
        ...

    async def entries(self, query: UsageQuery, *, after: int, limit: int) -> list[UsageEntry]:
        """Returns rows with seq > after, in order. The query's `by` has no effect here."""
        ...

    async def of_session(self, key: SessionKey) -> list[UsageEntry]: ...

    async def session_keys(self, *, after: SessionKey | None, limit: int) -> list[SessionKey]:
        """Returns every session that has a log, of all tenants, in key order; deleted and unlisted ones too."""
        ...

    async def without_log(self) -> int:
        """Returns how many rows belong to purged sessions or to none, so that there is no log to compare them with."""
        ...

    async def unrelayed(self, *, limit: int) -> list[UsageEntry]:
        """Returns rows that no relay has passed on yet, of all tenants, in the order of their numbers; none is ever
        skipped."""
        ...

    async def mark_relayed(self, seqs: Sequence[int], *, at: UnixMs) -> None:
        """Marks rows as relayed and acknowledged. Idempotent: a row keeps the first time."""
        ...


# -- what a principal may ask ---------------------------------------------------------------------------------------


def allowed_query(
    principal: Principal,
    *,
    tenant: str | None = None,
    user: str | None = None,
    model: str | None = None,
    first_day: str | None = None,
    last_day: str | None = None,
    by: str | None = None,
) -> UsageQuery:
    """Returns the query, as far as the principal may make it: a user's key sees that user's usage, a tenant's other
    keys the tenant's, operators every tenant's. Raises Forbidden, and BadInput for a malformed query."""
    demand(principal, "usage")
    whose = tenant_for(principal, tenant)
    if principal.role == "user" and principal.user is not None:
        user = principal.user
    since = _day("from", first_day) if first_day else UnixMs(0)
    until = UnixMs(_day("to", last_day) + DAY_MS) if last_day else UnixMs(2**53 - 1)
    if since >= until:
        raise BadInput("invalid_request", "`to` lies before `from`.", param="to")
    dimensions = tuple(part.strip() for part in by.split(",") if part.strip()) if by else DIMENSIONS
    for name in dimensions:
        if name not in DIMENSIONS:
            raise BadInput(
                "invalid_request", f"`group_by` takes {', '.join(DIMENSIONS)}, not {name!r}.", param="group_by"
            )
    return UsageQuery(
        tenant=whose,
        user=user,
        model=model,
        since=since,
        until=until,
        by=tuple(name for name in DIMENSIONS if name in dimensions),
    )


def _day(name: str, given: str) -> UnixMs:
    try:
        day = date.fromisoformat(given)
    except ValueError as error:
        raise BadInput("invalid_request", f"`{name}` is a day, such as 2026-12-01.", param=name) from error
    if day.year < 1970:
        raise BadInput("invalid_request", f"`{name}` is 1970 or later.", param=name)
    return UnixMs(int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000))


# -- as they are shown ----------------------------------------------------------------------------------------------


def total_public(total: UsageTotal, by: Sequence[Dimension]) -> dict[str, Json]:
    group = total.group
    named: dict[Dimension, Json] = {
        "day": day_text(group.day),
        "user": group.user or None,
        "model": group.model,
    }
    return {
        "object": "usage",
        **{name: named[name] for name in by},
        "responses": total.responses,
        "input_tokens": total.input_tokens,
        "cached_tokens": total.cached_tokens,
        "output_tokens": total.output_tokens,
        "reasoning_tokens": total.reasoning_tokens,
        "cached_output_tokens": total.cached_output_tokens,
        "retried_tokens": total.recomputed_tokens,
        "withheld_tokens": total.withheld_tokens,
        "cost": {"amount": amount(total.cost), "currency": group.currency} if group.currency else None,
    }


def day_text(day: int) -> str:
    return date.fromordinal(date(1970, 1, 1).toordinal() + day).isoformat() if day >= 0 else ""


def entry_public(entry: UsageEntry) -> dict[str, Json]:
    """Returns a row as the API shows it and the outbox relays it. Its `response_id`, together with tenant and session,
    identifies it for good."""
    row = entry.row
    cost: Json = None
    if row.price_version:
        cost = {"amount": amount(row.cost), "currency": row.currency, "price_version": row.price_version}
    return {
        "object": "usage.response",
        "seq": entry.seq,
        "tenant": entry.key.tenant,
        "session": entry.key.session,
        "response_id": row.response_id,
        "key_id": row.principal.key_id,
        "user": row.principal.user,
        "model": row.model,
        "status": row.status,
        "input_tokens": row.usage.input_tokens,
        "cached_tokens": row.usage.cached_tokens,
        "output_tokens": row.usage.output_tokens,
        "reasoning_tokens": row.usage.reasoning_tokens,
        "cached_output_tokens": row.usage.cached_output_tokens,
        "retried_tokens": row.recomputed_tokens,
        "withheld_tokens": row.withheld_tokens,
        "cost": cost,
        "at": row.at,
    }
