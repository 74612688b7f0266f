"""Runs the stages of `make test-all`: everything that `make test` leaves out. One stage does not stop another.

    python -m tests.stages                      every stage, a table at the end
    python -m tests.stages browser vllm         these alone
    python -m tests.stages --failed             those that failed the last time

What a stage prints goes to `dist/test-all/STAGE.log`; its last lines are shown where it failed. A stage is a target of
the Makefile or a call of pytest; the number of tests is the one that its runner names in its closing lines.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "dist" / "test-all"
RESULTS: Final = FOLDER / "results.json"
SHOWN_LINES: Final = 40
PASSED: Final = (re.compile(r"\b(\d+) passed"), re.compile(r"^\W*pass\s+(\d+)", re.MULTILINE))


def pytest(*arguments: str, workers: int = 2) -> tuple[str, ...]:
    return (sys.executable, "-m", "pytest", "-q", "--numprocesses", str(workers), "--dist", "loadgroup", *arguments)


def make(*targets: str) -> tuple[str, ...]:
    return ("make", "--no-print-directory", *targets)


OTHERS: Final = (
    "tests/unit",
    "tests/golden",
    "tests/contract",
    "tests/integration",
    "tests/walk",
    "clients/python/tests",
)
STAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "locks": make("withdrawn", "resolve"),
    "node": make("node"),
    "jvm": make("jvm"),
    "simulator": (sys.executable, "-m", "tests.simulation.seeds", "--first", "60", "--seeds", "2000"),
    "planted": pytest("-m", "slow", "tests/simulation"),
    "examples": pytest("-m", "hypothesis and not slow", "tests/unit", "tests/contract", "clients/python/tests"),
    "slow": pytest("-m", "slow and not (browser or chaos or containers or vllm)", *OTHERS),
    "attacks": pytest("-m", "not vllm", "tests/attacks"),
    "proxies": make("test-proxies"),
    "backups": make("test-backups"),
    "browser": pytest("tests/browser"),
    "chaos": pytest("tests/chaos"),
    "sdks": make("test-sdks"),
    "real-clients": make("test-clients"),
    "vllm": make("test-vllm"),
    "containers": make("test-containers"),
}


class Result(NamedTuple):
    """How one stage ended."""

    stage: str
    passed: int
    minutes: float
    status: int  # its exit status

    @property
    def word(self) -> str:
        return "green" if self.status == 0 else f"FAILED ({self.status})"


def run_stage(name: str, command: Sequence[str]) -> Result:
    """Runs one stage with its output in a file, and shows its last lines where it failed."""
    log = FOLDER / f"{name}.log"
    print(f"== {name}: {log.relative_to(ROOT)}", flush=True)
    began = time.monotonic()
    with log.open("wb") as output:
        environment = os.environ | {"SESSILE_TEST_EXPLORE": "1"}  # Hypothesis draws new examples
        ran = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    status = ran.returncode
    text = log.read_text(errors="replace")
    if status:
        print("\n".join(text.splitlines()[-SHOWN_LINES:]), flush=True)
    return Result(name, count_passed(text), (time.monotonic() - began) / 60, status)


def count_passed(output: str) -> int:
    """Adds up what the runners in an output say has passed: pytest's closing lines, and Node's."""
    return sum(int(count) for pattern in PASSED for count in pattern.findall(output))


def table(results: Iterable[Result]) -> str:
    lines = [f"{'stage':<13}{'passed':>8}{'minutes':>9}  result"]
    lines += [f"{each.stage:<13}{each.passed:>8}{each.minutes:>9.1f}  {each.word}" for each in results]
    return "\n".join(lines)


def chosen(names: Sequence[str], failed: bool, last: Mapping[str, int]) -> list[str]:
    """Returns the stages to run, in their order. Raises ValueError for one that does not exist."""
    unknown = sorted(set(names) - set(STAGES))
    if unknown:
        raise ValueError(f"no stage named {', '.join(unknown)}; there are: {', '.join(STAGES)}")
    if failed:
        names = [name for name in STAGES if last.get(name, 1) != 0]
    return [name for name in STAGES if (not names and not failed) or name in names]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", help=", ".join(STAGES))
    parser.add_argument("--failed", action="store_true", help="those that failed the last time, or have not run")
    given = parser.parse_args(arguments)
    FOLDER.mkdir(parents=True, exist_ok=True)
    last: dict[str, int] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    try:
        names = chosen(given.stages, given.failed, last)
    except ValueError as error:
        print(error, file=sys.stderr)
        return os.EX_USAGE
    results = []
    for name in names:
        results.append(run_stage(name, STAGES[name]))
        last[name] = results[-1].status
        RESULTS.write_text(json.dumps(last))
    print(table(results))
    return int(any(each.status for each in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
