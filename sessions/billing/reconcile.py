"""Compares the usage rows with the logs: every response that ended has one row, and the row says what the log says.

The log is the authority. Each response's usage is computed again from its events alone: what its terminal event says,
and, independently of that, the token ids in its deltas. Rows are read before the log, and once more if the log has an
end that the rows did not have, so that a server may go on working meanwhile.

A response that was cancelled while it waited never ran: it has an end and no row. Rows of purged sessions have no log
to be compared with any more; they are counted.

Changes nothing. Does not know where rows and logs are kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from sessions.billing.metering import UsageEntry, UsageStore
from sessions.model import events as ev
from sessions.model.journal_types import UsageRow
from sessions.model.types import ResponseId, SessionKey, TenantId
from sessions.ports import Journal

PAGE_RECORDS: Final = 2_000
PAGE_BYTES: Final = 4 << 20
KEYS: Final = 500
DIFFERENCES_MAX: Final = 1_000


class Sums(msgspec.Struct):
    responses: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ledger_tokens: int = 0  # token ids that deltas carry
    cost: int = 0


class Difference(msgspec.Struct, frozen=True):
    key: SessionKey
    response_id: ResponseId
    what: str

    def __str__(self) -> str:
        return f"{self.key.tenant}/{self.key.session} {self.response_id}: {self.what}"


class ReconciliationReport(msgspec.Struct):
    """The outcome of a reconciliation. `billed` sums the usage rows, `logged` the logs; they agree if there are no
    differences."""

    sessions: int = 0
    purged_rows: int = 0
    billed: Sums = msgspec.field(default_factory=Sums)
    logged: Sums = msgspec.field(default_factory=Sums)
    differences: list[Difference] = []
    num_differences: int = 0

    def differ(self, key: SessionKey, response_id: ResponseId, what: str) -> None:
        self.num_differences += 1
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences.append(Difference(key, response_id, what))


class _LoggedResponse(msgspec.Struct):
    """The usage of one response by its log."""

    created: bool = False
    body: ev.ResponseBody | None = None  # from the terminal event
    ledger_tokens: int = 0  # that its deltas carry
    ledger_at_end: int = 0  # that its terminal event carries
    rewritten: bool = False  # whether text was retracted, and its tokens with it


async def reconcile(journal: Journal, books: UsageStore, *, tenant: TenantId | None = None) -> ReconciliationReport:
    """Compares the usage rows of a tenant (None: of all tenants) with the logs. Raises Unavailable."""
    report = ReconciliationReport()
    async for key in _keys(books):
        if tenant is None or key.tenant == tenant:
            await _session(journal, books, key, report)
    report.purged_rows = await books.without_log()
    return report


async def _keys(books: UsageStore) -> AsyncIterator[SessionKey]:
    after: SessionKey | None = None
    while page := await books.session_keys(after=after, limit=KEYS):
        for key in page:
            yield key
        after = page[-1]


async def _session(journal: Journal, books: UsageStore, key: SessionKey, report: ReconciliationReport) -> None:
    rows = await books.of_session(key)
    logged = await _read(journal, key)
    if logged is None:
        return  # purged meanwhile
    ended = {response_id for response_id, response in logged.items() if response.body is not None}
    if ended - {entry.row.response_id for entry in rows}:
        rows = await books.of_session(key)
    report.sessions += 1
    by_id: dict[ResponseId, UsageEntry] = {}
    for entry in rows:
        response_id = entry.row.response_id
        if response_id in by_id:
            report.differ(key, response_id, "has more than one row")
        by_id[response_id] = entry
        _add(report.billed, entry.row)
        response = logged.get(response_id)
        if response is None or response.body is None:
            report.differ(key, response_id, "has a row, and no end in the log")
    for response_id, response in logged.items():
        if response.body is None:
            continue
        used = _used(response.body)
        report.logged.responses += response.created
        report.logged.ledger_tokens += response.ledger_tokens
        for name in ("input_tokens", "cached_tokens", "output_tokens", "cost"):
            setattr(report.logged, name, getattr(report.logged, name) + used[name])
        row = by_id.get(response_id)
        if row is None:
            if response.created:
                report.differ(key, response_id, "ended without a row")
            continue
        report.billed.ledger_tokens += response.ledger_tokens
        _compare(report, row, response, used)


def _compare(report: ReconciliationReport, entry: UsageEntry, logged: _LoggedResponse, used: dict[str, Any]) -> None:
    row, body = entry.row, logged.body
    assert body is not None
    billed = {
        "input_tokens": row.usage.input_tokens,
        "cached_tokens": row.usage.cached_tokens,
        "output_tokens": row.usage.output_tokens,
        "cached_output_tokens": row.usage.cached_output_tokens,
        "cost": row.cost,
        "price_version": row.price_version,
    }
    for name, value in billed.items():
        if value != used[name]:
            report.differ(entry.key, row.response_id, f"{name}: the row says {value}, the log {used[name]}")
    for name, value, in_log in (("status", row.status, body.status), ("model", row.model, body.model)):
        if value != in_log:
            report.differ(entry.key, row.response_id, f"{name}: the row says {value}, the log {in_log}")
    if logged.rewritten or row.withheld_tokens:
        return  # what readers have is not what the engine made
    if logged.ledger_tokens != logged.ledger_at_end:
        what = f"its deltas carry {logged.ledger_tokens} tokens, its end {logged.ledger_at_end}"
        report.differ(entry.key, row.response_id, what)
    if row.usage.output_tokens < logged.ledger_tokens:
        what = f"{logged.ledger_tokens} tokens were released and {row.usage.output_tokens} are billed"
        report.differ(entry.key, row.response_id, what)


def _used(body: ev.ResponseBody) -> dict[str, Any]:
    usage: dict[str, Any] = body.usage or {}
    cost = usage.get("cost") or {}
    return {
        "input_tokens": usage.get("input_tokens", 0),
        "cached_tokens": usage.get("input_tokens_details", {}).get("cached_tokens", 0),
        "output_tokens": usage.get("output_tokens", 0),
        "cached_output_tokens": usage.get("output_tokens_details", {}).get("cached_tokens", 0),
        "cost": _picos(cost.get("amount", "0")),
        "price_version": cost.get("price_version", ""),
    }


def _picos(text: str) -> int:
    whole, _, part = text.partition(".")
    return int(whole) * 10**12 + int(f"{part:0<12}")


def _add(sums: Sums, row: UsageRow) -> None:
    sums.responses += 1
    sums.input_tokens += row.usage.input_tokens
    sums.cached_tokens += row.usage.cached_tokens
    sums.output_tokens += row.usage.output_tokens
    sums.cost += row.cost


async def _read(journal: Journal, key: SessionKey) -> dict[ResponseId, _LoggedResponse] | None:
    logged: dict[ResponseId, _LoggedResponse] = {}
    after = 0
    while True:
        page = await journal.read(key, after=after, limit=PAGE_RECORDS, bytes_max=PAGE_BYTES)
        if page is None:
            return None
        for record in page.records:
            event, private = record.event, record.private
            match event:
                case ev.ResponseCreated():
                    logged.setdefault(event.response_id, _LoggedResponse()).created = True
                case ev.ResponseCompleted() | ev.ResponseIncomplete() | ev.ResponseFailed():
                    response = logged.setdefault(event.response_id, _LoggedResponse())
                    response.body = event.response
                    response.ledger_at_end = len(private.tokens) // 4 if private is not None else 0
                case ev.ResponseQueued():
                    pass  # the tokens beside it are the message's
                case ev.ContentRetracted():
                    if event.response_id:  # else somebody's message
                        logged.setdefault(event.response_id, _LoggedResponse()).rewritten = True
                case _ if private is not None and private.tokens and isinstance(event, ev.ResponseEvent):
                    logged.setdefault(event.response_id, _LoggedResponse()).ledger_tokens += len(private.tokens) // 4
                case _:
                    pass
        if not page.records:
            return logged
        after = page.records[-1].offset
