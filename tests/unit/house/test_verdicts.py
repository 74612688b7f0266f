"""No test judges by a clock: what a promise says in milliseconds is a bench, and a time-out only catches a hang."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.verdicts import script_verdicts, short_time_outs, verdicts

ROOT = Path(__file__).resolve().parents[3]
THIS = Path(__file__).resolve()


def sources_of(*endings: str) -> Iterator[Path]:
    for folder in (ROOT / "tests", ROOT / "testbed", *(ROOT / "clients").glob("*/test*")):
        for path in sorted(folder.rglob("*")):
            if path.suffix in endings and "node_modules" not in path.parts and path != THIS:
                yield path


def test_no_python_test_judges_by_a_clock() -> None:
    files = sources_of(".py")
    assert [f"{path.relative_to(ROOT)}:{line}" for path in files for line in verdicts(path.read_text())] == []


def test_no_script_test_judges_by_a_clock() -> None:
    scripts = sources_of(".mjs", ".js", ".ts", ".tsx")
    assert [f"{path.relative_to(ROOT)}:{line}" for path in scripts for line in script_verdicts(path.read_text())] == []


def test_time_outs_only_catch_hangs() -> None:
    files = (path for path in sources_of(".py") if "simulation" not in path.parts)  # its clock is its own
    assert [f"{path.relative_to(ROOT)}:{line}" for path in files for line in short_time_outs(path.read_text())] == []


@pytest.mark.parametrize(
    "body",
    [
        "began = time.monotonic()\n    assert time.monotonic() - began < 2",
        "began = perf_counter()\n    took = perf_counter() - began\n    assert took <= 0.05",
        "times = []\n    times.append(time.process_time_ns())\n    assert max(times) < 5",
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n    assert before < 10",
        "loop = asyncio.get_running_loop()\n    at = loop.time()\n    assert loop.time() - at < 1",
        "answer = fetch()\n    assert answer.elapsed < 1",
    ],
)
def test_a_planted_verdict_is_seen(body: str) -> None:
    source = f"async def test_it():\n    {body}\n"
    assert verdicts(source) == [source.count("\n")]


@pytest.mark.parametrize(
    "source",
    [
        "from tests.support.virtual_time import virtual\n@virtual\nasync def test_it():\n    assert loop.time() < 1",
        "def test_it():\n    made = clock(now=time.time)\n    assert made.count < 3",
        "def test_it():\n    assert lease_ttl_s < 6",
    ],
)
def test_virtual_time_and_counts_are_free(source: str) -> None:
    assert verdicts(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "const began = Date.now();\nconst ms = performance.now() - began;\nassert.ok(ms < 50);",
        "const times = [];\ntimes.push(performance.now());\nassert.ok(Math.max(...times) < 50);",
        "const began = Date.now();\n\nexpect(Date.now() - began < 5);",
    ],
)
def test_a_planted_verdict_in_a_script_is_seen(source: str) -> None:
    assert script_verdicts(source) == [3]


def test_a_planted_time_out_is_seen() -> None:
    assert short_time_outs("async with asyncio.timeout(5): pass\nawait asyncio.wait_for(x, 60)") == [1]
    assert short_time_outs("await asyncio.wait_for(x, timeout=2.5)") == [1]
    assert short_time_outs("ANSWER_S = 10.0\ndef next(timeout_s: float = ANSWER_S): pass\nwait(x, timeout=60)") == [2]
    assert short_time_outs("http = httpx.AsyncClient(timeout=30)") == [1]
