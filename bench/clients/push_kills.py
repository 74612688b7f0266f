"""Answers that nobody reads, and that a device reads, with a process killed at any place of them and of their push.

    python -m bench.clients.push_kills --rounds 1000 --seed 1

Two replicas and two gateways under virtual time (real actors, routers, links, feeds and relays; a memory journal), and
a push service outside of them. Each round is one answer. At a random word that the session's owner or the other replica
says to the journal, the directory, the outbox or the push service behind the question, that replica is killed; or the
gateway that a device reads through, which comes back by the other one. Counted is what
the device is told: each answer that nobody reads once (by its notice's id; what came twice under one id is counted
apart), and none that it reads. `bench.clients.push_once` does the same with real processes, slowly.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from typing import Any, get_args

import structlog

from bench.clients.push_kill_round import Victim, answer_with_a_kill
from bench.support import is_faultless, report, run_bench
from tests.support.virtual_time import run


def rounds(count: int, seed: int) -> dict[str, Any]:
    """Runs until so many were killed; what went wrong is in `findings`."""
    rng, findings, seen = random.Random(seed), list[str](), Counter[str]()
    begun_at, number = time.monotonic(), 0
    words = {
        (victim, is_read): max(run(answer_with_a_kill(victim, 1 << 30, is_read=is_read)).words, 8)
        for victim in ("owner", "other")
        for is_read in (False, True)
    }
    while seen["kills"] < count:
        victim: Victim = rng.choice(get_args(Victim))
        is_read = victim == "gateway" or rng.random() < 0.25
        at = rng.randint(1, 100) if victim == "gateway" else rng.randint(1, words[victim, is_read])
        number += 1
        verdict = run(answer_with_a_kill(victim, at, is_read=is_read, seed=seed * 1_000_003 + number))
        if verdict.problem:
            findings.append(f"round {number} ({victim} at {at}, read {is_read}): {verdict.problem}")
            print(findings[-1], flush=True)
        seen["kills"] += verdict.killed
        if number % 25 == 0:
            print(f"{number}: {seen['kills']} kills, {len(findings)} findings", flush=True)
        seen[f"kills of {victim}"] += verdict.killed
        seen["answers that a device reads" if is_read else "answers that nobody reads"] += 1
        seen["messages sent twice under one id"] += sum(verdict.told.values()) - len(verdict.told)
    return {**seen, "seed": seed, "findings": findings, "seconds": round(time.monotonic() - begun_at, 1)}


def main(arguments: argparse.Namespace) -> bool:
    structlog.configure(processors=[_drop])
    made = rounds(arguments.rounds, arguments.seed)
    report("push_kills", {**made, "findings": len(made["findings"])})
    return is_faultless(made["findings"])


def _drop(logger: Any, method: str, event: Any) -> Any:
    raise structlog.DropEvent


if __name__ == "__main__":
    run_bench(main, __doc__, rounds=1000, seed=1)
