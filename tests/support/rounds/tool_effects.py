"""Effects of server tools while the owner of their session is killed, stopped or drained at any place of a turn.

    python -m tests.support.rounds.tool_effects --rounds 10000 --seed 1

A cluster of two replicas under virtual time (real actors, routers, links; a memory journal), and a service outside of
it. Each round is a turn that calls a tool one to three times; at a random word that the owner says to the journal, the
directory or the service it is killed, stopped for 20 s (and wakes as a stale owner), or drained. Half of the tools take
keys: their service must see each effect exactly once. Of the others it may see none twice, and what is not known must
be shown as such.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from typing import Any, Final, get_args

import structlog

from tests.support.cluster.tool_effects import Fault, turn_with_tools
from tests.support.virtual_time import run

CALLS_MAX: Final = 3  # of one turn
FAULTS: Final = get_args(Fault)


def tool_rounds(count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Returns what was seen how often in so many rounds, and what went wrong."""
    rng, findings, seen = random.Random(seed), list[str](), Counter[str]()
    words = [run(turn_with_tools("kill", 1 << 30, takes_keys=True, calls=n)).words for n in range(1, CALLS_MAX + 1)]
    for number in range(count):
        fault, takes_keys, calls = rng.choice(FAULTS), rng.random() < 0.5, rng.randint(1, CALLS_MAX)
        at = rng.randint(1, words[calls - 1])
        verdict = run(turn_with_tools(fault, at, takes_keys=takes_keys, calls=calls, seed=seed * 1_000_003 + number))
        problem = verdict.problem
        if not problem and takes_keys and sorted(verdict.effects.values()) != [1] * calls:
            problem = "an effect under a key did not happen once"
        if problem:
            findings.append(f"round {number} ({fault} at {at}, keys {takes_keys}, {calls} calls): {problem}")
        seen["broke"] += verdict.broke
        seen[f"broke by {fault}"] += verdict.broke
        unknown = sum(output.startswith("outcome_unknown") for output in verdict.outputs)
        seen["calls"] += calls
        seen["effects"] += sum(verdict.effects.values())
        seen["unknown shown"] += unknown
        seen["unknown with keys"] += unknown if takes_keys else 0
    return seen, findings


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    structlog.configure(processors=[_drop])
    seen, findings = tool_rounds(chosen.rounds, chosen.seed)
    print(*findings[:20], sep="\n")
    print(f"{chosen.rounds} rounds, seed {chosen.seed}: {dict(sorted(seen.items()))}, {len(findings)} findings")
    return not findings


def _drop(logger: Any, method: str, event: Any) -> Any:
    raise structlog.DropEvent


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
