"""A stall of the machine is told from slow code, and what failed in one is run again, once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runs.stall_watch import PERIOD_S, STALL_S, StallWatch

ROOT = Path(__file__).resolve().parents[4]
CONFTEST = """
from tests.support.runs.stall_watch import StallRetry, StallWatch, status_of, summarize
WATCH = StallWatch()
def pytest_configure(config): config.pluginmanager.register(StallRetry(WATCH))
def pytest_report_teststatus(report): return status_of(report)
def pytest_terminal_summary(terminalreporter): summarize(terminalreporter)
"""
TESTS = """
import pytest
from conftest import WATCH
runs = []
@pytest.fixture
def stalled(request):
    runs.append(request.node.name)
    if request.param == "always" or (request.param == "once" and len(runs) == 1): WATCH.stalls.append(1.0)
    yield request.param
@pytest.mark.parametrize("stalled", ["once"], indirect=True)
def test_spoilt(stalled): assert len(runs) == 2
@pytest.mark.parametrize("stalled", ["never"], indirect=True)
def test_wrong(stalled): assert False
@pytest.mark.parametrize("stalled", ["always"], indirect=True)
def test_wrong_in_stalls(stalled): assert False
def test_count(): assert len(runs) == 2 + 1 + 2
"""


@pytest.mark.parametrize(
    ("waited_s", "computed_s", "stalls"),
    [
        (PERIOD_S, 0.0, 0),
        (PERIOD_S + STALL_S - 0.01, 0.0, 0),
        (PERIOD_S + STALL_S, 0.0, 1),
        (PERIOD_S + 2.0, 0.9, 1),
        (PERIOD_S + 2.0, 1.1, 0),  # a loop of ours that held the interpreter
    ],
)
def test_a_late_wake_without_computing_is_a_stall(waited_s: float, computed_s: float, stalls: int) -> None:
    now, cpu = [100.0], [7.0]
    watch = StallWatch(lambda: now[0], lambda: cpu[0])
    now[0] += waited_s + 1e-9
    cpu[0] += computed_s
    watch.look()
    assert len(watch.stalls) == stalls
    now[0] += PERIOD_S
    watch.look()
    assert len(watch.stalls) == stalls


def test_only_what_failed_in_a_stall_is_run_again_and_once(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_them.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    run = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": f"{ROOT}:{tmp_path}"}, capture_output=True, text=True, timeout=100
    )
    assert "2 failed, 2 passed, 2 stalled" in run.stdout, run.stdout
    assert "STALLED test_them.py::test_spoilt[once]" in run.stdout
    assert {line.split(" - ")[0] for line in run.stdout.splitlines() if line.startswith("FAILED")} == {
        "FAILED test_them.py::test_wrong[never]",
        "FAILED test_them.py::test_wrong_in_stalls[always]",
    }
