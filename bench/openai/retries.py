"""POSTs that are repeated under one Idempotency-Key while their connections are cut anywhere: one answer each.

    python -m bench.openai.retries --rounds 1000 --seed 1

Simulated engine, in this process. What a round does and what is wrong in one: `tests.support.rounds.openai_retries`.
Exits with 1 when anything is.
"""

from __future__ import annotations

import asyncio
import sys
import time

from bench.support import command_line, print_faults, report
from tests.support.rounds.openai_retries import retried


def main() -> int:
    given = command_line(__doc__, rounds=1000, seed=1)
    started = time.monotonic()
    done = asyncio.run(retried(given.rounds, given.seed))
    problems = done.pop("problems")
    print_faults(problems)
    figures = {"rounds": given.rounds, "seed": given.seed, **done, "problems (bar 0)": len(problems)}
    report("openai_retries", {**figures, "seconds": time.monotonic() - started})
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
