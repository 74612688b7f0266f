"""Usage rows held against logs: every kind of difference is reported, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.billing.metering import UsageEntry
from sessions.billing.reconcile import DIFFERENCES_MAX, ReconciliationReport, reconcile
from sessions.model.journal_types import Page, UsageRow
from sessions.model.types import ResponseId, SessionKey, TenantId
from tests.support.machine.machine_fixture import KEY, Ground


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


async def test_other_tenants_are_left_out(ground: Ground) -> None:
    assert (await report(ground, [], tenant=TenantId("other"))).sessions == 0


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
