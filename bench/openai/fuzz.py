"""Requests made up from the OpenAPI document, in three phases: no server error, no answer that is not as described.

    python -m bench.openai.fuzz --cases 20000 --seed 1

A server of its own with the simulated engine; how requests are drawn and judged: `tests.support.rounds.openai_fuzz`.
Exits with 1 when an answer is not as the document says.
"""

from __future__ import annotations

import argparse
import time

from bench.support import is_faultless, report, run_bench
from tests.support.doors.server_process import ServerProcess
from tests.support.rounds.openai_fuzz import FAST, fuzzed


def main(given: argparse.Namespace) -> bool:
    started = time.monotonic()
    with ServerProcess(*FAST) as server:
        done = fuzzed(f"http://127.0.0.1:{server.port}", given.cases, given.seed)
    figures = {
        "cases": done.cases,
        "seed": given.seed,
        "phases": dict(done.phases),
        "order of operations": done.digests,
        "answers by status": dict(sorted(done.statuses.items())),
        "problems (bar 0)": len(done.problems),
        "seconds": time.monotonic() - started,
    }
    report("openai_fuzz", figures)
    return is_faultless(done.problems)


if __name__ == "__main__":
    run_bench(main, __doc__, cases=20_000, seed=1)
