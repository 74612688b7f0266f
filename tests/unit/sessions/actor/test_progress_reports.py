"""How far calls have come, as it is passed on: the newest, not too often, and not for ever."""

from __future__ import annotations

import asyncio

from sessions.actor.progress_reports import MESSAGE_LENGTH_MAX, PAUSE_S, REPORTS_MAX, ProgressReports
from sessions.server_tools import ToolProgress
from tests.support.virtual_time import advance, virtual


class Seen:
    def __init__(self) -> None:
        self.reports: list[ToolProgress] = []

    async def __call__(self, progress: ToolProgress) -> None:
        self.reports.append(progress)


@virtual
async def test_the_newest_of_what_waits_is_passed_on() -> None:
    seen = Seen()
    async with ProgressReports(seen, asyncio.ensure_future) as reports:
        for number in range(1, 100):
            reports.put(ToolProgress(number, 100, "x" * 5_000))
        await advance(PAUSE_S * 3)
        assert [each.progress for each in seen.reports] == [99]
        reports.put(ToolProgress(100.0))
        await advance(PAUSE_S * 3)
        assert [each.progress for each in seen.reports] == [99, 100]
    assert len(seen.reports[0].message or "") == MESSAGE_LENGTH_MAX


@virtual
async def test_what_is_no_progress_is_left_out() -> None:
    seen = Seen()
    async with ProgressReports(seen, asyncio.ensure_future) as reports:
        for number in (2.0, 1.0, 2.0, float("nan"), float("inf")):
            reports.put(ToolProgress(number, float("nan")))
        await advance(PAUSE_S * 3)
    reports.put(ToolProgress(3.0))
    assert seen.reports == [ToolProgress(2.0)]


@virtual
async def test_a_call_reports_so_often_and_no_more() -> None:
    seen = Seen()
    async with ProgressReports(seen, asyncio.ensure_future) as reports:
        for number in range(3 * REPORTS_MAX):
            reports.put(ToolProgress(number))
            await advance(PAUSE_S * 2)
    assert len(seen.reports) == REPORTS_MAX
