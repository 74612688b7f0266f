"""How long a server takes to start, and how many of our modules it imports for that, against another checkout.

    git worktree add ../before TAG    # and `make setup` in it
    python -m bench.start --before ../before --rounds 5

A start is `serve` with its defaults and the simulated engine, in an empty folder. Times are those to the line that says
ready, and to the first answer over HTTP, asked for at once. Starts of the two checkouts take turns. Modules are counted
up to that line, and once more when the first answer is there.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from bench.support import ROOT, Option, percentile, report, run_bench

OURS: Final = ("app", "sessions", "actors", "inference", "persistence", "transport", "deploy")


class MeasuredStart(NamedTuple):
    """The times and the numbers of modules of one start."""

    ready_s: float
    answer_s: float
    ready_modules: int
    answer_modules: int


def modules_of(log: Path) -> int:
    """Counts our modules in what `python -X importtime` has written."""
    names = {line.rpartition("|")[2].strip() for line in log.read_text().splitlines() if "import time:" in line}
    return sum(name.partition(".")[0] in OURS for name in names)


def started(checkout: Path, *, counts: bool) -> MeasuredStart:
    """Starts a server and asks it for its models. With `counts` its modules are counted, which makes it slower."""
    command = [str(checkout / ".venv/bin/python"), *(("-X", "importtime") if counts else ())]
    with tempfile.TemporaryDirectory() as scratch, (Path(scratch) / "log").open("w") as log:
        command += ["app.py", "serve", "--engine", "sim", "--port", "0", "--data", f"{scratch}/data"]
        began = time.monotonic()
        with subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE, stderr=log, text=True) as server:
            try:
                assert server.stdout is not None
                url = next(line.split()[-1] for line in server.stdout if line.startswith("Sessile is ready"))
                ready_s, ready_modules = time.monotonic() - began, modules_of(Path(log.name))
                httpx.get(f"{url}v1/models", timeout=60).raise_for_status()
                return MeasuredStart(ready_s, time.monotonic() - began, ready_modules, modules_of(Path(log.name)))
            finally:
                server.terminate()


def main(options: argparse.Namespace) -> None:
    sides = {"now": ROOT} | ({"before": Path(options.before).resolve()} if options.before else {})
    counted = {name: started(checkout, counts=True) for name, checkout in sides.items()}  # and warms the caches
    starts: dict[str, list[MeasuredStart]] = {name: [] for name in sides}
    for number in range(options.rounds):
        for name in sorted(sides, reverse=number % 2 == 1):
            starts[name].append(started(sides[name], counts=False))
    figures: dict[str, Any] = {}
    for name, made in starts.items():
        figures[f"{name}: s to ready (median)"] = percentile([each.ready_s for each in made], 0.5)
        figures[f"{name}: s to the first answer (median)"] = percentile([each.answer_s for each in made], 0.5)
        figures[f"{name}: modules of ours at ready"] = counted[name].ready_modules
        figures[f"{name}: modules of ours at the first answer"] = counted[name].answer_modules
    report("start", figures)


if __name__ == "__main__":
    run_bench(main, __doc__, rounds=5, before=Option("", "another checkout with an environment of its own"))
