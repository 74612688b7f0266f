"""kill -9 of the server at random moments, again and again: is every token billed, once, and does the stream have it?

    python -m bench.governance.metering --rounds 200 --seed 1
    python -m bench.governance.metering --rounds 200 --seed 1 --kafka

Bar (issue 6): after 200 rounds the sum of usage is the tokens in the logs exactly; a consumer of the outbox has seen
each row at least once, and what it has without repetitions is the table. A round: `tests.support.rounds.metering`.
"""

from __future__ import annotations

import argparse

from bench.support import Option, is_faultless, report, run_bench
from tests.support.rounds.metering import rounds


async def main(given: argparse.Namespace) -> bool:
    how = {"clients": given.clients, "kill_within_s": given.kill_within, "kafka": given.kafka}
    figures = await rounds(given.rounds, seed=given.seed, **how)
    faults = figures.pop("faults")
    report("metering", {**figures, "faults": len(faults), "verdict": "met" if not faults else "NOT met"})
    return is_faultless(faults)


if __name__ == "__main__":
    kafka = Option(False, "the rows go to Kafka and not to Valkey")
    run_bench(main, __doc__, rounds=200, seed=1, clients=6, kill_within=1.2, kafka=kafka)
