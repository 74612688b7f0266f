"""Measures when the machine stood still, and has a test that failed meanwhile run once more.

A test judges by the clock what real processes do. While no process gets a core (a virtual machine that its host
paused, a disk that holds everything up) it judges the machine. A thread that wakes every 50 ms measures that: it woke
late although this process did not compute. A loop that blocks, a lock or slow code of ours is no such thing: there the
thread wakes in time, or the process has used its core. Only then a failure is run once more, and the summary names it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import pytest
from _pytest.runner import runtestprotocol

PERIOD_S: Final = 0.05
STALL_S: Final = 0.5  # heartbeats, leases and deadlines of tests are of this size
IDLE_SHARE: Final = 0.5  # of the time, the core that this process used at most


class StallWatch:
    """Counts how often this process woke late without having computed. Its thread lives as long as the process."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.process_time
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._before = (clock(), cpu_clock())
        self.stalls: list[float] = []  # seconds of each

    def start(self) -> None:
        threading.Thread(target=self._watch, name="stall-watch", daemon=True).start()

    def look(self) -> None:
        """Called after each wait of PERIOD_S."""
        now, cpu = self._clock(), self._cpu_clock()
        late, computed = now - self._before[0] - PERIOD_S, cpu - self._before[1]
        if late >= STALL_S and computed < IDLE_SHARE * late:
            self.stalls.append(late)
        self._before = (now, cpu)

    def _watch(self) -> None:
        waiting = threading.Event()
        while not waiting.wait(PERIOD_S):
            self.look()


class StallRetry:
    """The pytest plugin: a test that failed while the machine stood still is set up and run once more."""

    def __init__(self, watch: StallWatch) -> None:
        self._watch = watch

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        seen = len(self._watch.stalls)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        failed = [each for each in reports if each.failed]
        if failed and len(self._watch.stalls) > seen:
            for each in failed:
                each.outcome = "stalled"  # type: ignore[assignment]
                item.ihook.pytest_runtest_logreport(report=each)
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
        for each in reports:
            item.ihook.pytest_runtest_logreport(report=each)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True


def status_of(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
    """How pytest shows a run that was spoilt by a stall: neither passed nor failed."""
    return ("stalled", "S", "STALLED") if report.outcome == "stalled" else None  # type: ignore[comparison-overlap]


def summarize(terminal: pytest.TerminalReporter) -> None:
    for report in terminal.stats.get("stalled", ()):
        terminal.write_line(f"STALLED {report.nodeid} - the machine stood still while it ran; it was run once more")
