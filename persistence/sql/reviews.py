"""Review cases in SQLite and PostgreSQL. The port is `sessions.model.reviews.ReviewStore`. The appends that open cases
write them, and they are deleted with their session when it is purged.

A transition is one UPDATE whose condition is the state that it needs; if it changes nothing, the row's present state
says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from persistence.codec import Codec, review_row, seal_text, unseal_text, with_keys
from persistence.sql.script import Parameters, SqlDatabase, one_query
from persistence.validation import check_claim, check_decision, check_text
from persistence.write_batch import REVIEW_COLUMNS, case_attributes
from sessions.model.errors import Conflict
from sessions.model.reviews import (
    CASES_MAX,
    CLAIM_MS,
    DECIDED_MS,
    FEEDBACK,
    OPEN_MS,
    Case,
    Outcome,
    ReviewId,
    ReviewPosition,
    ReviewQuery,
    Tidied,
)
from sessions.model.types import SessionKey, UnixMs

TIDY_ROWS: Final = 1_000
RACES_MAX: Final = 8

_STATE: Final = (
    "remark, state, claimed_by, claimed_until, claim_command, outcome, decided_by, decided_at, decide_command,"
    " decisions, told"
)
_ALL: Final = f"{REVIEW_COLUMNS}, {_STATE}"

_ATTRIBUTES: Final = case_attributes(_ALL)

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
# (tenant, how many): decided ones first, then ratings, then what nobody appealed, the oldest of each.
CROWDED: Final = (
    "DELETE FROM reviews WHERE (tenant, id) IN (SELECT tenant, id FROM reviews WHERE tenant = $1"
    f" ORDER BY CASE WHEN state = 'decided' AND told = 1 THEN 0 WHEN category = '{FEEDBACK}' THEN 1"
    " WHEN appealed_at IS NULL THEN 2 ELSE 3 END, opened_at"
    " LIMIT $2) RETURNING state"
)


def list_statement(query: ReviewQuery, after: ReviewPosition | None, limit: int) -> tuple[str, list[Any]]:
    parameters = Parameters()
    put = parameters.put
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
        parameters.values,
    )


def case_of(row: Any, codec: Codec | None) -> Case:
    """Makes a case of its row; without a codec its texts stay empty."""
    values = dict(zip(_ATTRIBUTES, tuple(row), strict=True))
    key = SessionKey(values.pop("key.tenant"), values.pop("key.session"))
    for name in ("kept", "note", "remark"):
        place = review_row(values["id"], name)
        values[name] = "" if codec is None else unseal_text(codec, key, place, bytes(values[name]))
    return Case(key=key, **{**values, "told": bool(values["told"])})


class SqlReviews:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def find(self, review_id: ReviewId) -> Case | None:
        check_text(review_id)
        rows = await self._database.rows(FIND, (review_id,))
        return await self._case(rows[0]) if rows else None

    async def _case(self, row: Any) -> Case:
        """Makes a case of its row; its texts are decrypted."""
        codec = self._database.codec
        return await with_keys(codec, lambda: case_of(row, codec))

    async def page(self, query: ReviewQuery, *, after: ReviewPosition | None, limit: int) -> list[Case]:
        check_text(query.tenant, query.category, after.id if after else None)
        return [case_of(row, None) for row in await self._database.rows(*list_statement(query, after, limit))]

    async def claim(self, review_id: ReviewId, *, by: str, now: UnixMs, command: str) -> Case:
        check_text(review_id, by)
        values = (review_id, by, now + CLAIM_MS, command, now)
        return await self._change(review_id, CLAIM, values, partial(check_claim, review_id, by, now, command))

    async def decide(
        self, review_id: ReviewId, *, by: str, outcome: Outcome, remark: str, now: UnixMs, command: str
    ) -> Case:
        check_text(review_id, by, remark)
        case = await self.find(review_id)
        stored = b""
        if case is not None:
            codec, key, row = self._database.codec, case.key, review_row(case.id, "remark")
            stored = await with_keys(codec, lambda: seal_text(codec, key, row, remark))
        values = (review_id, by, outcome, stored, now, command)
        return await self._change(review_id, DECIDE, values, partial(check_decision, review_id, by, now, command))

    async def _change(
        self, review_id: ReviewId, statement: str, values: Sequence[Any], check: Callable[[Case | None], Case | None]
    ) -> Case:
        """Applies a transition by `statement`; returns the case after it. `check` gets the case as it is now: it raises
        if the transition is not allowed, and returns the case if it was made already. It runs before the statement, and
        again if the statement changed nothing."""
        for _ in range(RACES_MAX):
            done = check(await self.find(review_id))
            if done is not None:
                return done
            changed = await self._write(f"{statement} RETURNING {_ALL}", values)
            if changed:
                return await self._case(changed[0])
        raise Conflict("review_claimed", "Others are at this case.", param="review_id", retryable=True)

    async def undelivered(self, *, limit: int) -> list[Case]:
        return [case_of(row, None) for row in await self._database.rows(UNDELIVERED, (limit,))]

    async def mark_delivered(self, review_id: ReviewId, *, decision: int) -> None:
        await self._write(MARK_DELIVERED, (review_id, decision))

    async def tidy(self, *, now: UnixMs) -> Tidied:
        aged = crowded = 0
        while True:
            rows = await self._write(AGED, (now - DECIDED_MS, now - OPEN_MS, TIDY_ROWS))
            aged += sum(row[0] != "decided" for row in rows)
            if len(rows) < TIDY_ROWS:
                break
        for tenant, count in await self._database.rows(FULL, (CASES_MAX,)):
            over = count - CASES_MAX
            while over > 0:
                rows = await self._write(CROWDED, (tenant, min(over, TIDY_ROWS)))
                crowded += sum(row[0] != "decided" for row in rows)
                over = over - len(rows) if rows else 0
        return Tidied(aged, crowded)

    async def _write(self, text: str, values: Sequence[Any]) -> list[Any]:
        return await self._database.run(lambda: one_query(text, values))
