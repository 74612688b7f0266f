"""Review cases in memory, in SQLite, in PostgreSQL. The port is `sessions.model.reviews.ReviewStore`; cases are written
by the appends that open them, and go with their session when it is purged.

Both databases are asked the same statements, with `$n` for parameters (SQLite's `?n`). A transition is one UPDATE whose
condition is the state that it needs; where it changes nothing, what stands there says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, cast

import msgspec

from persistence.codec import Codec
from persistence.memory.journal import MemoryJournal
from persistence.postgres.journal import PostgresJournal
from persistence.sqlite.journal import SqliteJournal
from persistence.sqlite.library import sqlite3
from persistence.validation import check_text
from persistence.write_batch import REVIEW_COLUMNS, sealed, unsealed
from sessions.model.errors import Conflict
from sessions.model.reviews import (
    CASES_MAX,
    CLAIM_MS,
    DECIDED_MS,
    OPEN_MS,
    Case,
    Outcome,
    ReviewId,
    ReviewPosition,
    ReviewQuery,
    ReviewStore,
    Tidied,
    check_claimable,
    check_decidable,
    repeated_decision,
)
from sessions.model.types import ItemId, ResponseId, SessionId, SessionKey, TenantId, UnixMs

TIDY_ROWS: Final = 1_000
RACES_MAX: Final = 8

_STATE: Final = (
    "remark, state, claimed_by, claimed_until, claim_command, outcome, decided_by, decided_at, decide_command,"
    " decisions, told"
)
_ALL: Final = f"{REVIEW_COLUMNS}, {_STATE}"

FIND: Final = f"SELECT {_ALL} FROM reviews WHERE id = $1"
# (id, by, until, command, now)
CLAIM: Final = (
    "UPDATE reviews SET state = 'claimed', claimed_by = $2, claimed_until = $3, claim_command = $4 WHERE id = $1"
    " AND (state = 'open' OR (state = 'claimed' AND (claimed_until <= $5 OR claimed_by = $2)))"
)
# (id, by, outcome, remark, now, command)
DECIDE: Final = (
    "UPDATE reviews SET state = 'decided', outcome = $3, remark = $4, decided_by = $2, decided_at = $5,"
    " decide_command = $6, decisions = decisions + 1, claimed_by = '', claimed_until = 0,"
    " told = CASE WHEN action = 'flag' AND appealed_at IS NULL THEN 1 ELSE 0 END"
    " WHERE id = $1 AND state = 'claimed' AND claimed_by = $2 AND claimed_until > $5"
)
UNDELIVERED: Final = f"SELECT {_ALL} FROM reviews WHERE told = 0 AND state = 'decided' ORDER BY decided_at LIMIT $1"
MARK_DELIVERED: Final = "UPDATE reviews SET told = 1 WHERE id = $1 AND decisions = $2"
# (decided before, opened before, limit)
AGED: Final = (
    "DELETE FROM reviews WHERE (tenant, id) IN (SELECT tenant, id FROM reviews"
    " WHERE (state = 'decided' AND told = 1 AND decided_at < $1)"
    " OR (state <> 'decided' AND coalesce(appealed_at, opened_at) < $2) LIMIT $3) RETURNING state"
)
FULL: Final = "SELECT tenant, count(*) FROM reviews GROUP BY tenant HAVING count(*) > $1"
# (tenant, how many): decided ones first, then what nobody appealed, the oldest of each.
CROWDED: Final = (
    "DELETE FROM reviews WHERE (tenant, id) IN (SELECT tenant, id FROM reviews WHERE tenant = $1"
    " ORDER BY CASE WHEN state = 'decided' AND told = 1 THEN 0 WHEN appealed_at IS NULL THEN 1 ELSE 2 END, opened_at"
    " LIMIT $2) RETURNING state"
)


def list_statement(query: ReviewQuery, after: ReviewPosition | None, limit: int) -> tuple[str, list[Any]]:
    values: list[Any] = []

    def put(value: Any) -> str:
        values.append(value)
        return f"${len(values)}"

    where = ["1 = 1"]
    if query.tenant is not None:
        where.append(f"tenant = {put(query.tenant)}")
    if query.category is not None:
        category = put(query.category)
        where.append(f"(category = {category} OR substr(category, 1, length({category}) + 1) = {category} || '/')")
    match query.state:
        case "open":
            where.append(f"(state = 'open' OR (state = 'claimed' AND claimed_until <= {put(query.now)}))")
        case "claimed":
            where.append(f"state = 'claimed' AND claimed_until > {put(query.now)}")
        case "decided":
            where.append("state = 'decided'")
    if query.opened_before is not None:
        where.append(f"opened_at < {put(query.opened_before)}")
    if query.appealed is not None:
        where.append(f"appealed_at IS {'NOT ' if query.appealed else ''}NULL")
    if after is not None:
        where.append(f"(opened_at, id) > ({put(after.opened_at)}, {put(after.id)})")
    return (
        f"SELECT {_ALL} FROM reviews WHERE {' AND '.join(where)} ORDER BY opened_at, id LIMIT {put(limit)}",
        values,
    )


def case_of(row: Any, codec: Codec | None) -> Case:
    """Without a codec, without its texts."""
    values = tuple(row)
    tenant, name, session, cause, direction, action, category, score, model, policy, user, response, item = values[:13]
    offset, start, end, kept, note, opened_at, appealed_at, remark, state, by, until, claim = values[13:25]
    outcome, decided_by, decided_at, decide, decisions, told = values[25:]
    key = SessionKey(TenantId(tenant), SessionId(session))
    kept, note, remark = (
        ("", "", "") if codec is None else (unsealed(codec, key, bytes(each)) for each in (kept, note, remark))
    )
    return Case(
        id=ReviewId(name),
        key=key,
        cause=cause,
        direction=direction,
        action=action,
        category=category,
        score=score,
        model=model,
        policy=policy,
        user=user,
        response_id=None if response is None else ResponseId(response),
        item_id=None if item is None else ItemId(item),
        offset=offset,
        start=start,
        end=end,
        kept=kept,
        note=note,
        remark=remark,
        opened_at=UnixMs(opened_at),
        appealed_at=None if appealed_at is None else UnixMs(appealed_at),
        state=state,
        claimed_by=by,
        claimed_until=UnixMs(until),
        claim_command=claim,
        outcome=cast(Any, outcome),
        decided_by=decided_by,
        decided_at=None if decided_at is None else UnixMs(decided_at),
        decide_command=decide,
        decisions=decisions,
        told=bool(told),
    )


def check_claim(review_id: ReviewId, by: str, now: UnixMs, command: str, case: Case | None) -> Case | None:
    """The answer to a claim that is repeated; None: it may be claimed. Raises what stands in the way."""
    return _check_transition(
        case, review_id, command, case.claim_command if case else "", partial(check_claimable, by=by, now=now)
    )


def check_decision(review_id: ReviewId, by: str, now: UnixMs, command: str, case: Case | None) -> Case | None:
    """Likewise of a decision."""
    return _check_transition(
        case, review_id, command, case.decide_command if case else "", partial(check_decidable, by=by, now=now)
    )


def _check_transition(
    case: Case | None, review_id: ReviewId, command: str, last: str, check: Callable[[Case], None]
) -> Case | None:
    """`last` is the command that made this transition before."""
    if done := repeated_decision(case, review_id, command, last):
        return done
    assert case is not None
    check(case)
    return None


class _SqlReviews:
    """What both databases are asked in the same words."""

    _codec: Codec

    async def _rows(self, statement: str, values: Sequence[Any]) -> list[Any]:
        raise NotImplementedError

    async def _write(self, *statements: tuple[str, Sequence[Any]]) -> list[list[Any]]:
        """Runs statements in one transaction; the rows of each."""
        raise NotImplementedError

    async def find(self, review_id: ReviewId) -> Case | None:
        check_text(review_id)
        rows = await self._rows(FIND, (review_id,))
        return case_of(rows[0], self._codec) if rows else None

    async def page(self, query: ReviewQuery, *, after: ReviewPosition | None, limit: int) -> list[Case]:
        check_text(query.tenant, query.category, after.id if after else None)
        return [case_of(row, None) for row in await self._rows(*list_statement(query, after, limit))]

    async def claim(self, review_id: ReviewId, *, by: str, now: UnixMs, command: str) -> Case:
        check_text(review_id, by)
        values = (review_id, by, now + CLAIM_MS, command, now)
        return await self._change(review_id, CLAIM, values, partial(check_claim, review_id, by, now, command))

    async def decide(
        self, review_id: ReviewId, *, by: str, outcome: Outcome, remark: str, now: UnixMs, command: str
    ) -> Case:
        check_text(review_id, by, remark)
        case = await self.find(review_id)
        stored = sealed(self._codec, case.key, remark) if case is not None else b""
        values = (review_id, by, outcome, stored, now, command)
        return await self._change(review_id, DECIDE, values, partial(check_decision, review_id, by, now, command))

    async def _change(
        self, review_id: ReviewId, statement: str, values: Sequence[Any], check: Callable[[Case | None], Case | None]
    ) -> Case:
        """The case after a transition. `check` raises for what stands in its way, or returns the answer to a repeat. It
        is asked before, and again where the transition found something else than it."""
        for _ in range(RACES_MAX):
            done = check(await self.find(review_id))
            if done is not None:
                return done
            (changed,) = await self._write((f"{statement} RETURNING {_ALL}", values))
            if changed:
                return case_of(changed[0], self._codec)
        raise Conflict("review_claimed", "Others are at this case.", param="review_id", retryable=True)

    async def undelivered(self, *, limit: int) -> list[Case]:
        return [case_of(row, None) for row in await self._rows(UNDELIVERED, (limit,))]

    async def mark_delivered(self, review_id: ReviewId, *, decision: int) -> None:
        await self._write((MARK_DELIVERED, (review_id, decision)))

    async def tidy(self, *, now: UnixMs) -> Tidied:
        aged = crowded = 0
        while True:
            (rows,) = await self._write((AGED, (now - DECIDED_MS, now - OPEN_MS, TIDY_ROWS)))
            aged += sum(row[0] != "decided" for row in rows)
            if len(rows) < TIDY_ROWS:
                break
        for tenant, count in await self._rows(FULL, (CASES_MAX,)):
            over = count - CASES_MAX
            while over > 0:
                (rows,) = await self._write((CROWDED, (tenant, min(over, TIDY_ROWS))))
                crowded += sum(row[0] != "decided" for row in rows)
                over = over - len(rows) if rows else 0
        return Tidied(aged, crowded)


class SqliteReviews(_SqlReviews):
    def __init__(self, journal: SqliteJournal) -> None:
        self._journal = journal
        self._codec = journal.codec

    async def _rows(self, statement: str, values: Sequence[Any]) -> list[Any]:
        return await self._journal.rows(_question_marks(statement), values)

    async def _write(self, *statements: tuple[str, Sequence[Any]]) -> list[list[Any]]:
        def step(connection: sqlite3.Connection) -> list[list[Any]]:
            return [connection.execute(_question_marks(text), values).fetchall() for text, values in statements]

        return cast(list[list[Any]], await self._journal.job(step))


class PostgresReviews(_SqlReviews):
    def __init__(self, journal: PostgresJournal) -> None:
        self._journal = journal
        self._codec = journal.codec

    async def _rows(self, statement: str, values: Sequence[Any]) -> list[Any]:
        return await self._journal.rows(statement, *values)

    async def _write(self, *statements: tuple[str, Sequence[Any]]) -> list[list[Any]]:
        async with self._journal.transaction() as connection:
            return [list(await connection.fetch(text, *values)) for text, values in statements]


class MemoryReviews:
    """Gone with the journal that it belongs to."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._store = journal.store

    async def find(self, review_id: ReviewId) -> Case | None:
        return self._store.reviews.get(review_id)

    async def page(self, query: ReviewQuery, *, after: ReviewPosition | None, limit: int) -> list[Case]:
        found = [
            msgspec.structs.replace(case, kept="", note="", remark="")
            for case in self._store.reviews.values()
            if query.tenant in (None, case.key.tenant)
            and query.category in (None, case.category, case.about)
            and query.state in (None, case.standing(query.now))
            and (query.opened_before is None or case.opened_at < query.opened_before)
            and query.appealed in (None, case.appealed_at is not None)
            and (after is None or (case.opened_at, case.id) > after)
        ]
        return sorted(found, key=lambda case: (case.opened_at, case.id))[:limit]

    async def claim(self, review_id: ReviewId, *, by: str, now: UnixMs, command: str) -> Case:
        case = self._store.reviews.get(review_id)
        if done := check_claim(review_id, by, now, command, case):
            return done
        assert case is not None
        return self._put(
            case, state="claimed", claimed_by=by, claimed_until=UnixMs(now + CLAIM_MS), claim_command=command
        )

    async def decide(
        self, review_id: ReviewId, *, by: str, outcome: Outcome, remark: str, now: UnixMs, command: str
    ) -> Case:
        case = self._store.reviews.get(review_id)
        if done := check_decision(review_id, by, now, command, case):
            return done
        assert case is not None
        return self._put(
            case,
            state="decided",
            outcome=outcome,
            remark=remark,
            decided_by=by,
            decided_at=now,
            decide_command=command,
            decisions=case.decisions + 1,
            claimed_by="",
            claimed_until=UnixMs(0),
            told=not case.concerns_user,
        )

    def _put(self, case: Case, **changes: Any) -> Case:
        self._store.reviews[case.id] = changed = msgspec.structs.replace(case, **changes)
        return changed

    async def undelivered(self, *, limit: int) -> list[Case]:
        found = [case for case in self._store.reviews.values() if not case.told and case.state == "decided"]
        return sorted(found, key=lambda case: case.decided_at or 0)[:limit]

    async def mark_delivered(self, review_id: ReviewId, *, decision: int) -> None:
        case = self._store.reviews.get(review_id)
        if case is not None and case.decisions == decision:
            self._put(case, told=True)

    async def tidy(self, *, now: UnixMs) -> Tidied:
        aged = self._drop([case for case in self._store.reviews.values() if _aged(case, now)])
        crowded = 0
        tenants = sorted(self._store.reviews.values(), key=lambda case: (case.key.tenant, _rank(case), case.opened_at))
        for _, cases in groupby(tenants, key=lambda case: case.key.tenant):
            all_of_it = list(cases)
            crowded += self._drop(all_of_it[: max(0, len(all_of_it) - CASES_MAX)])
        return Tidied(aged, crowded)

    def _drop(self, cases: Sequence[Case]) -> int:
        for case in cases:
            del self._store.reviews[case.id]
        return sum(case.state != "decided" for case in cases)


def _aged(case: Case, now: int) -> bool:
    if case.state == "decided":
        return case.told and (case.decided_at or 0) < now - DECIDED_MS
    return (case.appealed_at or case.opened_at) < now - OPEN_MS


def _rank(case: Case) -> int:
    """Who goes first where there are too many."""
    return 0 if case.state == "decided" and case.told else 1 if case.appealed_at is None else 2


def _question_marks(statement: str) -> str:
    return re.sub(r"\$(\d+)", r"?\1", statement)


def reviews_of(journal: object) -> ReviewStore:
    """The review cases that lie in a journal's database; good for as long as the journal is open."""
    match journal:
        case SqliteJournal():
            return SqliteReviews(journal)
        case PostgresJournal():
            return PostgresReviews(journal)
        case MemoryJournal():
            return MemoryReviews(journal)
        case _:
            raise AssertionError("this journal keeps no review cases")
