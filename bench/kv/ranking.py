"""How long the event loop is held when a tier makes room, and when the ranks of its sessions are learned anew.

    python -m bench.kv.ranking --snapshots 20000

Both are done between two tokens of everybody's answers. The victim is looked for among a few drawn at random
(`inference.kv.index.lowest_ranked`), and of the silences that go on a sample is learned from; the peer in each pair
takes all of them. `victims_place` is where the victim stands among all, 0 for the least valuable: what the draw costs.
"""

from __future__ import annotations

import argparse
import array
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bench.support import report, run_bench
from inference.kv.cost import CostModel
from inference.kv.disk import DiskEntry
from inference.kv.eviction_rank import FIT_SAMPLE, ReturnModel, ReturnTracker
from inference.kv.index import SnapshotIndex, lowest_ranked
from inference.kv.snapshot_worth import SnapshotWorth
from sessions.model.types import SessionId, SessionKey, TenantId
from tests.support.percentiles import percentile

T = TypeVar("T")
FIT_EVERY = 256


class ManualClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(ReturnModel):
    """Notes how long each fit takes."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def fit(self, silent=(), *, weight: float = 1.0) -> None:  # type: ignore[no-untyped-def]
        begun = time.perf_counter()
        super().fit(silent, weight=weight)
        self.seconds.append(time.perf_counter() - begun)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


def main(arguments: argparse.Namespace) -> None:
    chance, clock, model = random.Random(7), ManualClock(), Timed()
    returns = ReturnTracker(clock, sessions_max=arguments.snapshots, fit_every=FIT_EVERY, model=model)
    worth = SnapshotWorth(returns, CostModel())
    shelf = SnapshotIndex[DiskEntry]()
    for number in range(arguments.snapshots):
        key = SessionKey(TenantId(f"tenant-{number % 100}"), SessionId(f"session-{number}"))
        clock.now += chance.expovariate(50.0)
        returns.on_turn(key, chance.randrange(100, 30_000))
        size = chance.randrange(1, 512) << 20
        shelf.add(DiskEntry(key, array.array("I"), Path(f"{number}.kv"), size, clock.now))
    keys = list(shelf.sessions)
    sampled, ranked_all, places = list[float](), list[float](), list[float]()
    for _ in range(arguments.pairs):
        returns.on_turn(chance.choice(keys), 2_000)
        seconds, victim = timed(lambda: lowest_ranked(shelf, worth))
        sampled.append(seconds)
        seconds, order = timed(lambda: sorted((worth(each), number) for number, each in enumerate(shelf)))
        seconds, _ = timed(lambda: min(list(shelf), key=worth))
        ranked_all.append(seconds)
        numbers = {id(each): number for number, each in enumerate(shelf)}
        places.append([number for _, number in order].index(numbers[id(victim)]) / len(order))
    model.seconds.clear()
    fits_all = list[float]()
    for _ in range(arguments.pairs):
        while len(model.seconds) <= len(fits_all):
            clock.now += 0.02
            returns.on_turn(chance.choice(keys), 2_000)
        going_on = [(each.kind, clock.now - each.since_s) for each in returns._silences.values()]
        fits_all.append(timed(lambda: ReturnModel.fit(model, going_on))[0])  # noqa: B023 - called at once
    report(
        "kv_ranking",
        {
            "snapshots": len(shelf),
            "victim_ms_p50": 1000 * percentile(sampled, 0.5),
            "victim_ms_worst": 1000 * max(sampled),
            "victim_all_ms_p50": 1000 * percentile(ranked_all, 0.5),
            "victims_place_mean": sum(places) / len(places),
            "victims_place_worst": max(places),
            "fit_of": FIT_SAMPLE,
            "fit_ms_p50": 1000 * percentile(model.seconds, 0.5),
            "fit_ms_worst": 1000 * max(model.seconds),
            "fit_all_ms_p50": 1000 * percentile(fits_all, 0.5),
        },
    )


if __name__ == "__main__":
    run_bench(main, __doc__, snapshots=20000, pairs=30)
