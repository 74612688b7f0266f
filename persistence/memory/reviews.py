"""Review cases in memory. The port is `sessions.model.reviews.ReviewStore`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from persistence.memory.database import MemoryDatabase
from persistence.validation import check_claim, check_decision
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
from sessions.model.types import UnixMs


class MemoryReviews:
    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def find(self, review_id: ReviewId) -> Case | None:
        return self._database.reviews.get(review_id)

    async def page(self, query: ReviewQuery, *, after: ReviewPosition | None, limit: int) -> list[Case]:
        cases = [
            msgspec.structs.replace(case, kept="", note="", remark="")
            for case in self._database.reviews.values()
            if query.tenant in (None, case.key.tenant)
            and query.category in (None, case.category, case.about)
            and query.state in (None, case.standing(query.now))
            and (query.opened_before is None or case.opened_at < query.opened_before)
            and query.appealed in (None, case.appealed_at is not None)
            and (after is None or (case.opened_at, case.id) > after)
        ]
        return sorted(cases, key=lambda case: (case.opened_at, case.id))[:limit]

    async def claim(self, review_id: ReviewId, *, by: str, now: UnixMs, command: str) -> Case:
        case = self._database.reviews.get(review_id)
        if done := check_claim(review_id, by, now, command, case):
            return done
        assert case is not None
        return self._put(
            case, state="claimed", claimed_by=by, claimed_until=UnixMs(now + CLAIM_MS), claim_command=command
        )

    async def decide(
        self, review_id: ReviewId, *, by: str, outcome: Outcome, remark: str, now: UnixMs, command: str
    ) -> Case:
        case = self._database.reviews.get(review_id)
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
        self._database.reviews[case.id] = changed = msgspec.structs.replace(case, **changes)
        return changed

    async def undelivered(self, *, limit: int) -> list[Case]:
        cases = [case for case in self._database.reviews.values() if not case.told and case.state == "decided"]
        return sorted(cases, key=lambda case: case.decided_at or 0)[:limit]

    async def mark_delivered(self, review_id: ReviewId, *, decision: int) -> None:
        case = self._database.reviews.get(review_id)
        if case is not None and case.decisions == decision:
            self._put(case, told=True)

    async def tidy(self, *, now: UnixMs) -> Tidied:
        aged = self._drop([case for case in self._database.reviews.values() if _aged(case, now)])
        crowded = 0
        tenants = sorted(
            self._database.reviews.values(), key=lambda case: (case.key.tenant, _rank(case), case.opened_at)
        )
        for _, cases in groupby(tenants, key=lambda case: case.key.tenant):
            all_of_it = list(cases)
            crowded += self._drop(all_of_it[: max(0, len(all_of_it) - CASES_MAX)])
        return Tidied(aged, crowded)

    def _drop(self, cases: Sequence[Case]) -> int:
        for case in cases:
            del self._database.reviews[case.id]
        return sum(case.state != "decided" for case in cases)


def _aged(case: Case, now: int) -> bool:
    if case.state == "decided":
        return case.told and (case.decided_at or 0) < now - DECIDED_MS
    return (case.appealed_at or case.opened_at) < now - OPEN_MS


def _rank(case: Case) -> int:
    """Returns the rank of a case for deletion when a tenant has too many: cases with the lowest rank go first."""
    if case.state == "decided" and case.told:
        return 0
    if case.category == FEEDBACK:
        return 1
    return 2 if case.appealed_at is None else 3
