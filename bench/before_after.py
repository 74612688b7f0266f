"""Two checkouts of the project, compared: the same bench run in both at once, pair by pair.

    git worktree add ../before TAG
    python -m bench.before_after --before ../before --pairs 10

A pair is a run of both checkouts at once, so that both lack what other machines on the same hardware take away; the
second pair begins with the other one. A ratio above 1 says that this checkout does better; the figures are the mean
over pairs and its one-sided 95% lower bound (bar: 0.98). Both run on the interpreter that runs this.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.support import ROOT, Option, lower_bound, report, run_bench


class Figure(NamedTuple):
    bench: str
    arguments: str
    name: str  # of the figure in the bench's report
    more_is_better: bool


FIGURES = (
    Figure("streams", "--streams 100 --rate 25 --seconds 10", "CPU us per event", False),
    Figure("journal", "--sessions 100 --rate 0 --seconds 8", "durable events/s", True),
    Figure("turn_cpu", "--turns 40 --rounds 3", "CPU ms per turn at 1k", False),
)


def started(checkout: Path, figure: Figure) -> subprocess.Popen[str]:
    """Starts the bench in a checkout."""
    command = [sys.executable, "-m", f"bench.{figure.bench}", *figure.arguments.split()]
    return subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(bench: subprocess.Popen[str], figure: Figure) -> float:
    """Returns its figure. Raises RuntimeError where it did not end well."""
    out, errors = bench.communicate()
    for line in out.splitlines():
        if line.startswith("{"):
            figures: dict[str, Any] = msgspec.json.decode(line)
            if figure.name in figures:
                return float(figures[figure.name])
    raise RuntimeError(f"{figure.bench} ended with {bench.returncode}: {errors[-2000:]}")


def compared(figure: Figure, before: Path, pairs: int) -> dict[str, Any]:
    """Runs either side `pairs` times; ratios say how much better this checkout is."""
    ratios: list[float] = []
    values: dict[Path, list[float]] = {ROOT: [], before: []}
    for pair in range(pairs):
        order = (before, ROOT) if pair % 2 else (ROOT, before)
        running = [started(checkout, figure) for checkout in order]
        for checkout, bench in zip(order, running, strict=True):
            values[checkout].append(ended(bench, figure))
        now, then = values[ROOT][-1], values[before][-1]
        ratios.append(now / then if figure.more_is_better else then / now)
        print(f"  {figure.bench} pair {pair}: before {then:.4g}, now {now:.4g}, ratio {ratios[-1]:.3f}", flush=True)
    return {
        "figure": figure.name,
        "pairs": pairs,
        "before (median)": sorted(values[before])[pairs // 2],
        "now (median)": sorted(values[ROOT])[pairs // 2],
        "ratio, mean": sum(ratios) / pairs,
        "ratio, 95% lower bound (bar 0.98)": lower_bound(ratios),
    }


def main(options: argparse.Namespace) -> None:
    before = Path(options.before).resolve()
    if not (before / "bench" / "support.py").is_file():
        raise SystemExit(f"{options.before} is no checkout of this project: make one with `git worktree add`")
    for figure in FIGURES:
        if figure.bench in options.only or not options.only:
            report(f"before_after {figure.bench}", compared(figure, before, options.pairs))


if __name__ == "__main__":
    only = Option([], "benches", [each.bench for each in FIGURES])
    run_bench(main, __doc__, before=Option("../before", "the checkout to compare with"), pairs=10, only=only)
