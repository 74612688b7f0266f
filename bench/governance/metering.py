"""kill -9 of the server at random moments, again and again: is every token billed, once, and does the stream have it?

    python -m bench.governance.metering --rounds 200 --seed 1
    python -m bench.governance.metering --rounds 200 --seed 1 --kafka

Bar (issue 6): after 200 rounds the sum of usage is the tokens in the logs exactly; a consumer of the outbox has seen
each row at least once, and what it has without repetitions is the table. A round: `tests.support.rounds.metering`.
"""

from __future__ import annotations

import asyncio
import sys

from bench.support import Option, command_line, print_faults, report
from tests.support.rounds.metering import rounds


def main() -> int:
    given = command_line(
        __doc__,
        rounds=200,
        seed=1,
        clients=6,
        kill_within=1.2,
        kafka=Option(False, "the rows go to Kafka and not to Valkey"),
    )
    how = {"clients": given.clients, "kill_within_s": given.kill_within, "kafka": given.kafka}
    figures = asyncio.run(rounds(given.rounds, seed=given.seed, **how))
    faults = figures.pop("faults")
    report("metering", {**figures, "faults": len(faults), "verdict": "met" if not faults else "NOT met"})
    print_faults(faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
