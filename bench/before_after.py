"""Two checkouts of the project, compared: the same bench run in each, in turns, pair by pair.

    git worktree add ../before TAG
    python -m bench.before_after --before ../before --pairs 10

A pair is one run of either checkout, the second pair in the other order than the first, so that a slope of the
machine's speed favours neither. Where the machine has room for both sides, they run at once: what other machines on
the same hardware take away, both lack. Journals are plain on both sides, as they were before there was encryption
(`--encrypted`: this checkout's is encrypted, what that costs included). A ratio above 1 says that this checkout does
better; the figures are the mean over pairs and its one-sided 95% lower bound (bar: 0.98). Both run on the interpreter
that runs this. OpenAI's door has its own: `bench.openai_overhead --against ../before`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.support import ROOT, lower_bound, report


class Figure(NamedTuple):
    bench: str
    arguments: str
    name: str  # of the figure in the bench's report
    more_is_better: bool
    at_once: bool = False  # both sides of a pair
    plain: str = ""  # the flag for plain bodies, where the bench makes its own journal


FIGURES = (
    Figure("streams", "--streams 100 --rate 25 --seconds 10", "CPU us per event", False, at_once=True),
    Figure("journal", "--sessions 100 --rate 0 --seconds 8", "durable events/s", True, at_once=True, plain="--plain"),
    Figure("turn_cpu", "--turns 40 --rounds 3", "CPU ms per turn at 1k", False, at_once=True),
)


def started(checkout: Path, figure: Figure, *, encrypted: bool) -> subprocess.Popen[str]:
    """The bench, running in a checkout."""
    command = [sys.executable, "-m", f"bench.{figure.bench}", *figure.arguments.split()]
    environment = {**os.environ, "SESSILE_JOURNAL_ENCRYPTION": "off"}
    if checkout == ROOT:
        command += [] if encrypted else figure.plain.split()
        environment["SESSILE_JOURNAL_ENCRYPTION"] = "on" if encrypted else "off"
    return subprocess.Popen(
        command, cwd=checkout, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(bench: subprocess.Popen[str], figure: Figure) -> float:
    """Its figure. Raises RuntimeError where it did not end well."""
    out, errors = bench.communicate()
    for line in out.splitlines():
        if line.startswith("{"):
            figures: dict[str, Any] = msgspec.json.decode(line)
            if figure.name in figures:
                return float(figures[figure.name])
    raise RuntimeError(f"{figure.bench} ended with {bench.returncode}: {errors[-2000:]}")


def compared(figure: Figure, before: Path, pairs: int, *, encrypted: bool) -> dict[str, Any]:
    """`pairs` runs of either side; ratios say how much better this checkout is."""
    ratios: list[float] = []
    values: dict[Path, list[float]] = {ROOT: [], before: []}
    for pair in range(pairs):
        order = (before, ROOT) if pair % 2 else (ROOT, before)
        if figure.at_once:
            running = [started(checkout, figure, encrypted=encrypted) for checkout in order]
            for checkout, bench in zip(order, running, strict=True):
                values[checkout].append(ended(bench, figure))
        else:
            for checkout in order:
                values[checkout].append(ended(started(checkout, figure, encrypted=encrypted), figure))
        now, then = values[ROOT][-1], values[before][-1]
        ratios.append(now / then if figure.more_is_better else then / now)
        print(f"  {figure.bench} pair {pair}: before {then:.4g}, now {now:.4g}, ratio {ratios[-1]:.3f}", flush=True)
    return {
        "figure": figure.name,
        "pairs": pairs,
        "encrypted": encrypted,
        "before (median)": sorted(values[before])[pairs // 2],
        "now (median)": sorted(values[ROOT])[pairs // 2],
        "ratio, mean": sum(ratios) / pairs,
        "ratio, 95% lower bound (bar 0.98)": lower_bound(ratios),
    }


def main(options: argparse.Namespace) -> None:
    before = options.before.resolve()
    if not (before / "bench" / "support.py").is_file():
        raise SystemExit(f"{options.before} is no checkout of this project: make one with `git worktree add`")
    for figure in FIGURES:
        if figure.bench in options.only or not options.only:
            report(f"before_after {figure.bench}", compared(figure, before, options.pairs, encrypted=options.encrypted))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--before", type=Path, required=True, help="the checkout to compare with")
    arguments.add_argument("--pairs", type=int, default=10)
    arguments.add_argument("--encrypted", action="store_true", help="this checkout's journal is")
    arguments.add_argument("--only", nargs="*", default=[], choices=[each.bench for each in FIGURES])
    main(arguments.parse_args())
