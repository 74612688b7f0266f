"""POSTs that are repeated under one Idempotency-Key while their connections are cut anywhere: one answer each.

    python -m bench.openai.retries --rounds 1000 --seed 1

Simulated engine, in this process. What a round does and what is wrong in one: `tests.support.rounds.openai_retries`.
Exits with 1 when anything is.
"""

from __future__ import annotations

import argparse
import time

from bench.support import is_faultless, report, run_bench
from tests.support.rounds.openai_retries import retried


async def main(given: argparse.Namespace) -> bool:
    started = time.monotonic()
    done = await retried(given.rounds, given.seed)
    problems = done.pop("problems")
    figures = {"rounds": given.rounds, "seed": given.seed, **done, "problems (bar 0)": len(problems)}
    report("openai_retries", {**figures, "seconds": time.monotonic() - started})
    return is_faultless(problems)


if __name__ == "__main__":
    run_bench(main, __doc__, rounds=1000, seed=1)
