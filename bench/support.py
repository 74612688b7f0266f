"""A bench's command line, its report with where it was measured, and the arithmetic that benches share."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
import psutil
import structlog

ROOT: Final = Path(__file__).resolve().parents[1]

os.environ.setdefault("SESSILE_MODEL", "smollm2-135m")  # what the servers of benches serve; other figures name theirs


class Option(NamedTuple):
    """An option of a bench's command line whose default does not say all of it."""

    default: Any
    help: str = ""
    choices: Sequence[Any] | None = None


def run_bench(main: Callable[[argparse.Namespace], Any], doc: str | None, /, **options: Any) -> NoReturn:
    """Runs `main` (a coroutine to its end) with `--name value` of every keyword: its default gives the type, a list
    takes several values, False is a switch. Exit status 1 where it returns False; only errors are logged."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, given in options.items():
        default, explanation, choices = given if isinstance(given, Option) else Option(given)
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true", help=explanation)
            continue
        several = isinstance(default, list)
        sample = default[0] if several and default else "" if several else default
        parser.add_argument(
            flag, type=type(sample), nargs="+" if several else None, default=default, choices=choices, help=explanation
        )
    result = main(parser.parse_args())
    if asyncio.iscoroutine(result):
        result = asyncio.run(result)
    sys.exit(1 if result is False else 0)


def is_faultless(faults: Sequence[str]) -> bool:
    """Prints the first twenty to standard error: what a bench that misses its bar has to show."""
    for fault in faults[:20]:
        print("  fault:", fault, file=sys.stderr)
    return not faults


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value that `share` of `values` do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]


def spread(name: str, values: Sequence[float], points: str = "p50 p99", *, times: float = 1) -> dict[str, float]:
    """Figures named `name` with its `{}` replaced by each point (a percentile, or `max`), `times` as large."""
    return {
        name.format(point): times * (max(values) if point == "max" else percentile(values, int(point[1:]) / 100))
        for point in points.split()
    }


def where() -> dict[str, Any]:
    """Hardware and commit, for every result."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True)
    model = next(
        (line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.processor()
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        "commit": commit.stdout.strip() + ("+changes" if dirty.stdout.strip() else ""),
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def report(name: str, figures: dict[str, Any]) -> None:
    """Prints a result, one line of JSON for machines after a table for people."""
    print(f"\n== {name}")
    for key, value in {**figures, **where()}.items():
        shown = f"{value:.3f}" if isinstance(value, float) else value
        print(f"  {key:<36} {shown}")
    print(msgspec.json.encode({"bench": name, **figures, **where()}).decode(), flush=True)


def lower_bound(ratios: Sequence[float]) -> float:
    """One-sided 95% lower bound of the mean of paired ratios (Student's t; 10 pairs have t = 1.833)."""
    count = len(ratios)
    t = {3: 2.920, 4: 2.353, 5: 2.132, 6: 2.015, 7: 1.943, 8: 1.895, 9: 1.860, 10: 1.833}.get(count, 1.645)
    mean = sum(ratios) / count
    spread = (sum((ratio - mean) ** 2 for ratio in ratios) / (count - 1)) ** 0.5
    return float(mean - t * spread / count**0.5)


def filler(tokens: int, seed: int = 0) -> str:
    """English of about `tokens` tokens that differs from seed to seed from its first word on."""
    words = ("river", "stone", "amber", "cloud", "train", "paper", "winter", "garden", "signal", "copper", "lemon")
    return " ".join(words[(index * 7 + seed * 3 + index // 11 + (seed >> 3)) % len(words)] for index in range(tokens))
