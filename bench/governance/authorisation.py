"""A hundred thousand attempts to be let in where one may not: none may be allowed.

    python -m bench.governance.authorisation [--attempts 100000] [--seed 1]

One server in this process with every door (HTTP, WebSocket, gRPC) on real sockets, keys of two tenants and three users,
and an issuer of tokens. First every cell of the matrix: each route, command and method by nobody, by wrong, expired and
revoked keys and tokens, by another tenant, another user, and a key that lacks the scope; an operator of another tenant
who has `break_glass` and gives no reason, and a filed key without a user, among them. Then strangers take the sessions
that Idempotency-Keys of the tenant's service lead to (`tests/support/authorisation/chosen.py`). Then attempts made up
from the seed until there are as many as wanted, in disguises (`tests/support/authorisation/generated.py`): one in six
brings ids, names and metadata of the caller's choice that are the victim's. At the end the service sends the requests
whose place was tried, and the store is searched for anything of hers in a session of somebody else.

Bar: 0 attempts allowed that should not be, 0 answers with anything of the victim's in them, 0 that tell somebody else's
thing from one that does not exist, and afterwards the victim's log and keys stand as they stood.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from typing import Any

import structlog

from bench.support import report, run_bench
from tests.support.authorisation.chosen import beforehand, leaks
from tests.support.authorisation.entries import Names
from tests.support.authorisation.generated import doors, one
from tests.support.authorisation.matrix import ENTRIES, askers, judged, missing
from tests.support.authorisation.world import a_world

SHOWN = 20


async def measure(attempts: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    wrong: list[str] = []
    kinds: Counter[str] = Counter()
    began = time.perf_counter()
    async with a_world() as world:
        victim = world.victim
        names = Names(victim.session, victim.response, victim.item, victim.key_id, victim.review)
        before = await world.log_of(victim), await world.log_of(world.named), world.keys_of_acme()
        without_entry = missing(world)
        for entry in ENTRIES:
            for asker in askers(world, entry):
                kinds[asker.kind] += 1
                wrong += await judged(world, entry, asker, names)
        kinds["sessions taken beforehand"], found = await beforehand(world)
        wrong += found
        cells = sum(kinds.values())
        for _ in range(max(0, attempts - cells)):
            wrong += await one(world, rng, names)
        wrong += await leaks(world)
        stands = (await world.log_of(victim), await world.log_of(world.named), world.keys_of_acme()) == before
    for each in wrong[:SHOWN]:
        print(f"  WRONG {each}")
    return {
        **doors(),
        "without an entry": len(without_entry),
        "cells of the matrix": cells,
        **{f"of them: {kind}": count for kind, count in sorted(kinds.items())},
        "attempts": max(cells, attempts),
        "wrong": len(wrong),
        "the victim's log and keys stand": stands,
        "seed": seed,
        "seconds": time.perf_counter() - began,
        "verdict": "met" if not wrong and stands and not without_entry else "NOT MET",
    }


async def main(given: argparse.Namespace) -> bool:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    figures = await measure(given.attempts, given.seed)
    report("authorisation", figures)
    return bool(figures["verdict"] == "met")


if __name__ == "__main__":
    run_bench(main, __doc__, attempts=100_000, seed=1)
