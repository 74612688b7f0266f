"""Runs seeds: one of them, with its trace; or thousands, on every core.

python -m tests.simulation.seeds --seeds 10000 [--first 0] [--jobs 2]
python -m tests.simulation.seeds --seed 4711           the same run again, with all that happened
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import structlog

from sessions.turn import prompt_rendering
from tests.simulation.cluster import Cluster
from tests.simulation.loop import Deadlock
from tests.simulation.world import World
from tests.support.stores.journals import postgres

VIRTUAL_MAX_S = 400.0
CHUNK = 25


class Outcome(msgspec.Struct):
    seed: int
    problems: list[str]
    counters: dict[str, int]
    digest: str = ""
    trace: str = ""


def run_seed(seed: int, *, keep_trace: bool = False, bent_on: tuple[str, ...] = (), store: str = "memory") -> Outcome:
    """One seed from its morning to its evening. Never raises for what the product did. `bent_on`: what the nemesis
    does, instead of what the seed says. `store`: the kind of the database that the journal is in."""
    world = World(seed, keep_trace=keep_trace)
    world.bent_on = bent_on
    with _around(world):
        try:
            world.loop.run(_day(world, store))
        except Deadlock as nothing:
            world.violation(str(nothing))
        except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001 - whatever it is, the seed has failed
            world.violation(f"asserts: {failure!r}")
        finally:
            problems = list(world.problems)
            world.loop.bury()
            for free in world.at_end:
                free()
    lines = render(world) if world.lines is not None else []
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest() if lines else ""
    return Outcome(seed, problems, dict(world.counters), digest, "\n".join(lines))


async def _day(world: World, store: str) -> None:
    world.broken = world.loop.create_future()
    cluster = Cluster(world, store)
    day = world.loop.create_task(cluster.day())
    limit = world.loop.call_later(VIRTUAL_MAX_S, world.violation, "the day has no end")
    await asyncio.wait((day, world.broken), return_when=asyncio.FIRST_COMPLETED)
    limit.cancel()
    if day.done() and not world.problems:
        day.result()


def render(world: World) -> list[str]:
    assert world.lines is not None
    return [f"{when:9.4f}  {who:9s} {' '.join(str(part) for part in what)}" for when, who, what in world.lines]


class _Quiet:
    """What the product logs as an error, for the world; nothing else is even put together."""

    def __init__(self, world: World) -> None:
        self._world = world

    def error(self, **event: Any) -> None:
        self._world.logged(event)

    exception = critical = failure = fatal = error


@contextmanager
def _around(world: World) -> Iterator[None]:
    before, whole = structlog.get_config(), prompt_rendering.JOINED_PIECES_MIN
    prompt_rendering.JOINED_PIECES_MIN = 2  # type: ignore[misc]  # no life is long enough to reach what it is
    structlog.configure(
        processors=[lambda logger, name, event: ((), event)],
        wrapper_class=structlog.make_filtering_bound_logger(40),
        logger_factory=lambda *_: _Quiet(world),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
        prompt_rendering.JOINED_PIECES_MIN = whole  # type: ignore[misc]


# -- many ----------------------------------------------------------------------------------------------------------


def _several(seeds: range, bent_on: tuple[str, ...] = (), store: str = "memory") -> list[Outcome]:
    gc.disable()  # nothing of the product may depend on when garbage is collected
    try:
        return [run_seed(seed, bent_on=bent_on, store=store) for seed in seeds]
    finally:
        gc.enable()
        gc.collect()


def run_seeds(
    first: int,
    count: int,
    *,
    jobs: int | None = None,
    stop_at: int = 1,
    chunk: int = CHUNK,
    bent_on: tuple[str, ...] = (),
    store: str = "memory",
) -> Iterator[Outcome]:
    """The outcomes of many seeds, in order; ends after `stop_at` that failed."""
    chunks = [range(at, min(at + chunk, first + count)) for at in range(first, first + count, chunk)]
    failed = 0
    jobs = jobs or len(os.sched_getaffinity(0))
    with multiprocessing.get_context("fork").Pool(jobs, initializer=gc.freeze) as pool:
        for outcomes in pool.imap(partial(_several, bent_on=bent_on, store=store), chunks):
            for outcome in outcomes:
                yield outcome
                failed += bool(outcome.problems)
                if failed >= stop_at:
                    return


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation.seeds")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--store", default="memory", help="sqlite, sqlite-sealed, postgres or postgres-sealed")
    parser.add_argument("--failures", type=int, default=1, help="go on until so many have failed")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        outcome = run_seed(given.seed, keep_trace=True, store=given.store)
        print(outcome.trace)
        print(f"seed {outcome.seed}: {'; '.join(outcome.problems) or 'clean'} (trace {outcome.digest})")
        return 1 if outcome.problems else 0
    if given.store.startswith("postgres"):
        postgres()  # one server for all processes
    print(f"seeds {given.first}…{given.first + given.seeds - 1}")
    began, ran, bad = time.monotonic(), 0, 0
    counters: Counter[str] = Counter()
    for outcome in run_seeds(given.first, given.seeds, jobs=given.jobs, stop_at=given.failures, store=given.store):
        ran += 1
        counters.update(outcome.counters)
        if outcome.problems:
            bad += 1
            print(
                f"seed {outcome.seed} FAILED: {outcome.problems[0]}\n  replay it: make simulate SEED={outcome.seed}",
                flush=True,
            )
    took = time.monotonic() - began
    print(f"{ran} seeds, {bad} failed, {took:.0f} s, {ran / took:.0f} seeds/s")
    print(", ".join(f"{name} {count}" for name, count in sorted(counters.items())))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
