from __future__ import annotations

import asyncio
import linecache
import threading
from typing import Any

from sessions.metrics import Metrics
from transport.ops.loop_watchdog import LoopWatchdog, running_calls


def hold_the_loop(until: threading.Event) -> None:
    until.wait(10)


async def test_a_stall_is_reported_while_it_lasts_with_what_runs() -> None:
    metrics, reports, reported = Metrics(), list[dict[str, Any]](), threading.Event()

    def report(**what: Any) -> None:
        reports.append(what)
        reported.set()

    async with LoopWatchdog(metrics, stall_ms=40, report=report):
        hold_the_loop(reported)  # ends when the watchdog has seen it
        while not metrics.loop_delay_s.count:  # noqa: ASYNC110 - the beat has waited: it is next
            await asyncio.sleep(0)
    assert metrics.loop_stalls.total == 1 and len(reports) == 1
    assert "hold_the_loop" in reports[0]["running"] and "\n" not in reports[0]["running"]


async def test_a_stall_that_the_thread_could_not_see_is_reported_by_the_loop() -> None:
    metrics, reports = Metrics(), list[dict[str, Any]]()
    async with LoopWatchdog(metrics, stall_ms=10_000, report=lambda **what: reports.append(what)) as watchdog:
        watchdog._due -= 30  # the thread looks again in five seconds
        watchdog._beat(asyncio.get_running_loop())
    assert metrics.loop_stalls.total == 1
    assert [each["running"] for each in reports] == ["code that held the interpreter's lock"]


async def test_a_loop_that_runs_is_measured_and_not_reported() -> None:
    metrics, reports = Metrics(), list[dict[str, Any]]()
    async with LoopWatchdog(metrics, stall_ms=10_000, report=lambda **what: reports.append(what)) as watchdog:
        watchdog._beat(asyncio.get_running_loop())
    assert metrics.loop_delay_s.count == 1 and not metrics.loop_stalls.total and not reports


async def test_nothing_is_watched_without_a_bound() -> None:
    before = threading.active_count()
    async with LoopWatchdog(Metrics(), stall_ms=0):
        assert threading.active_count() == before


def test_a_thread_that_has_ended_runs_nothing() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert thread.ident is not None and running_calls(thread.ident) == "the thread has ended"


def test_naming_the_running_calls_keeps_no_source_in_memory() -> None:
    linecache.clearcache()
    assert "test_naming_the_running_calls" in running_calls(threading.get_ident())
    assert not linecache.cache
