"""The Python client through a network that cuts, delays and goes silent, and over kills of the server.

    python -m bench.clients.sdk_faults --rounds 1000 --seed 1  # a server in this process: its heartbeat can be short
    python -m bench.clients.sdk_faults --kills 30 --seed 1     # `app.py serve` as a process, killed in mid-answer

What a round does and what is wrong in one: `tests.support.rounds.sdk_faults`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from bench.support import is_faultless, report, run_bench
from tests.support.doors.server_process import ROOT

sys.path.insert(0, str(ROOT / "clients" / "python"))
from tests.support.rounds.sdk_faults import kills, rounds


def main(given: argparse.Namespace) -> bool:
    good = True
    for name, result in (
        ("sdk_faults", asyncio.run(rounds(given.rounds, given.seed, given.at_once)) if given.rounds else None),
        ("sdk_kills", asyncio.run(kills(given.kills, given.seed)) if given.kills else None),
    ):
        if result is not None:
            good &= is_faultless(result["faults"])
            report(name, {**result, "faults": len(result["faults"])})
    return good


if __name__ == "__main__":
    run_bench(main, __doc__, rounds=0, kills=0, seed="1", at_once=12)
