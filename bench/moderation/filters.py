"""The input chain: its latency, alone and beside a busy process, and what the costliest texts take of it.

    python -m bench.moderation.filters                     # about a minute
    python -m bench.moderation.filters --worst-texts 10000 # what a text costs, instead

Latency: messages of 2,000 tokens (8,500 code points, 4.25 a token) through the whole chain of one policy: phrases,
personal data, secrets and toxicity, each message another one; alone, with eight at once, and alone
beside a process that keeps a core busy. Once more with names of people and places (spaCy through Presidio) added. Bar
(issue 34): p99 ≤ 5 ms.

`--worst-texts`: long, nested and repetitive texts of all scripts; see `bench.moderation.worst_texts`. The verdict on
the bars is the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from bench.moderation.worst_texts import measure_worst_texts
from bench.support import Option, report, run_bench, spread
from inference.moderation import PolicyFilterSet
from sessions.model.types import LOCAL_PRINCIPAL
from sessions.ports import InputFilter

CODE_POINTS = 8_500
BAR_MS = 5.0
WORDS = Path(__file__).with_name("prose.txt").read_text().split()  # of the messages
POLICY = """
[policies.default]
deadline_ms = 10000
[policies.default.input]
phrases = { deny = ["project nightjar", "the blue ledger"], action = "flag" }
secrets = { action = "flag" }
toxicity = { action = "flag" }
pii = { action = "flag"KINDS }
"""
NAMES = ', kinds = ["email", "credit_card", "iban", "us_ssn", "phone", "ip_address", "person", "location"]'


def message(rng: random.Random, words: list[str]) -> str:
    """Prose with some numbers and addresses in it."""
    made: list[str] = []
    length = 0
    while length < CODE_POINTS:
        word = rng.choice(words)
        if rng.random() < 0.02:
            word = rng.choice(
                [str(rng.randrange(10**6)), "https://example.org/a?b=c", f"v{rng.randrange(9)}.1.{rng.randrange(99)}"]
            )
        made.append(word + rng.choice(["", "", "", "", "", "", ",", "."]))
        length += len(made[-1]) + 1
    return " ".join(made)[:CODE_POINTS]


async def timed(each: InputFilter, texts: list[str], at_once: int) -> list[float]:
    """Milliseconds that each message took."""
    took: list[float] = []
    rest = iter(texts)

    async def work() -> None:
        for text in rest:
            began = time.perf_counter()
            await each.check(LOCAL_PRINCIPAL, text)
            took.append((time.perf_counter() - began) * 1e3)

    await asyncio.gather(*(work() for _ in range(at_once)))
    return took


async def with_filter(policy: str, body: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.toml"
        path.write_text(policy)
        filters = PolicyFilterSet(str(path))
        await filters.open()
        try:
            (each,) = filters.input_filters(LOCAL_PRINCIPAL)
            return await body(each)
        finally:
            await filters.close()


async def measure(rounds: int) -> bool:
    words = WORDS
    rng = random.Random(3)

    def texts(count: int = rounds) -> list[str]:
        return [message(rng, words) for _ in range(count)]

    async def chain(each: InputFilter) -> dict[str, Any]:
        await timed(each, texts(20), 1)
        figures: dict[str, Any] = {}
        for name, at_once in (("alone", 1), ("eight at once", 8)):
            figures |= spread(name + ", {} ms", await timed(each, texts(), at_once))
        fresh = texts()
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            took = await timed(each, fresh, 1)
        finally:
            busy.kill()
            busy.wait()
        return figures | spread("beside a busy process, {} ms", took)

    async def named(each: InputFilter) -> dict[str, Any]:
        return spread("with names, {} ms", await timed(each, texts(60), 1))

    figures = await with_filter(POLICY.replace("KINDS", ""), chain)
    figures |= await with_filter(POLICY.replace("KINDS", NAMES), named)
    report("filters", {"messages": rounds, "code points": CODE_POINTS, **figures})
    passed = bool(figures["alone, p99 ms"] <= BAR_MS and figures["beside a busy process, p99 ms"] <= BAR_MS)
    print("PASS" if passed else "FAIL")
    return passed


def main(given: argparse.Namespace) -> bool:
    if given.worst_texts:
        return measure_worst_texts(given.worst_texts)
    return uvloop.run(measure(given.rounds))  # the server's loop


if __name__ == "__main__":
    worst_texts = Option(0, "so many texts of all kinds are made, and what each costs is measured instead")
    run_bench(main, __doc__, rounds=1_000, worst_texts=worst_texts)
