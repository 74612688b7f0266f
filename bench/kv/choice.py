"""Restore or recompute: what did deciding cost, over sizes and throttled tiers, with the crossover in range?

    python -m bench.kv.choice --rounds 2

Real llama.cpp on one thread, a real disk tier whose bytes come at so many MB/s, piece by piece as from a slow disk. In
each cell of the sweep the engine first does what it thinks best; then both ways are forced, one after the other, and
teach it nothing: it knows what its own turns have shown, as in a server. A cell's regret is how much longer than the
better way it takes to wait for a read that is then given up, and to go the way that the engine went. Bar: p95 at most
15%. Where computing the same tokens twice differs by more than that, the clock cannot tell: `regret_p95_by_the_clock`
takes the engine's own turn as it was, `wander_p95` says how far that was from the forced turn that did the same.

Every cell counts: also the first of all, when nothing is known of the disk, and those in which
the disk's speed has just changed (`regret_p95_changed` is theirs alone).
"""

from __future__ import annotations

import argparse
import io
import random
import tempfile
import time
from pathlib import Path

import inference.kv.disk
from bench.peer import MODEL
from bench.support import report, run_bench, spread
from inference.kv.cold_tier import ColdSnapshot, FetchProgress
from inference.kv.cost import CostModel, RestoreChoice
from inference.kv.envelope import SnapshotRefused
from inference.kv.host_tier import HostSnapshot
from inference.kv.promotion import Promotions
from inference.llama import LlamaEngine, LlamaOptions
from inference.tokens import as_tokens
from persistence.keys import MemoryKeyStore
from sessions.model.generation import Chunk
from sessions.model.types import SessionKey
from tests.support.engines.engines import key, request
from tests.support.percentiles import percentile


class Forced(CostModel):
    """Does as it is told while `restore` says so, and learns nothing from that."""

    restore: bool | None = None

    def choose(self, tiers: tuple[str, ...], num_bytes: int, begin: int, end: int, now_s: float) -> RestoreChoice:
        if self.restore is None:
            return super().choose(tiers, num_bytes, begin, end, now_s)
        return RestoreChoice(self.restore, 0.0, 1.0, 600.0)

    def prefilled(self, begin: int, end: int, seconds: float) -> None:
        if self.restore is None:
            super().prefilled(begin, end, seconds)

    def moved(self, tier: str, num_bytes: int, seconds: float, now_s: float) -> None:
        if self.restore is None:
            super().moved(tier, num_bytes, seconds, now_s)


class SlowFile(io.RawIOBase):
    """A file whose bytes come at `bytes_per_s`. Blocking."""

    bytes_per_s = 1e12

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file
        self._due_s = time.monotonic()

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size) or b""
        self._wait(len(data))
        return data

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        done = self._file.readinto(buffer) or 0
        self._wait(done)
        return done

    def _wait(self, num_bytes: int) -> None:
        self._due_s += num_bytes / self.bytes_per_s
        time.sleep(max(0.0, self._due_s - time.monotonic()))


class Throttled(inference.kv.disk.ProgressReader):
    def __init__(self, file: io.RawIOBase, progress: FetchProgress) -> None:
        super().__init__(SlowFile(file), progress)


class Waits:
    """How long reads were waited for that did not bring the snapshot."""

    def __init__(self, promotions: Promotions) -> None:
        self.lost_s = 0.0
        self._wait = promotions.wait
        promotions.wait = self.wait  # type: ignore[method-assign]

    async def wait(self, snapshot: ColdSnapshot, choice: RestoreChoice | None) -> HostSnapshot:
        begun_s = time.perf_counter()
        try:
            return await self._wait(snapshot, choice)
        except SnapshotRefused:
            self.lost_s += time.perf_counter() - begun_s
            raise


async def first_token(engine: LlamaEngine, who: SessionKey, prompt: tuple[int, ...]) -> float:
    begun, first = time.perf_counter(), 0.0
    async for item in engine.generate(request(who, prompt, max_tokens=1)):
        if isinstance(item, Chunk):
            first = first or time.perf_counter() - begun
    return first


async def empty(engine: LlamaEngine) -> None:
    """Slots and host memory hold nothing and no read is under way; the disk is as it was."""
    tiers = engine._slot_kv.tiers
    for slot in engine._table:
        engine._table.forget(slot)
    await tiers.host.settle()
    for snapshot in tuple(tiers.host):
        await tiers.catalog.drop(snapshot)


async def lay_down(engine: LlamaEngine) -> None:
    """What the slots hold is on disk."""
    for slot in engine._table:
        await engine._slot_kv.save(slot)
    await engine._slot_kv.tiers.host.settle()


async def main(arguments: argparse.Namespace) -> None:
    chance, cost = random.Random(arguments.seed), Forced()
    regrets: list[float] = []
    changed: list[float] = []
    by_the_clock: list[float] = []
    wander: list[float] = []
    restores = 0
    inference.kv.disk.ProgressReader = Throttled  # type: ignore[misc]
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as folder:
        options = LlamaOptions(
            model_path=MODEL, slots=2, context_window=4096, threads=1, disk_folder=Path(folder), save_idle_s=3600.0
        )
        engine = LlamaEngine(options, MemoryKeyStore(), cost=cost)
        await engine.start()
        slot_kv = engine._slot_kv
        waits = Waits(slot_kv.tiers._promotions)
        text = tuple(await engine.tokenizer.text("rivers and mountains and the long road between them " * 400))
        keys = {size: key(f"s{size}") for size in arguments.sizes}
        for size, who in keys.items():
            await first_token(engine, who, text[:size])
            await lay_down(engine)
            await empty(engine)
        for _ in range(arguments.rounds):
            for speed in chance.sample(arguments.mb_per_s, len(arguments.mb_per_s)):
                SlowFile.bytes_per_s = speed * 1e6
                for number, size in enumerate(chance.sample(arguments.sizes, len(arguments.sizes))):
                    prompt = (*text[:size], *text[7:23])
                    snapshot, _ = slot_kv.tiers.catalog.find(keys[size], as_tokens(prompt))
                    assert snapshot is not None and not isinstance(snapshot, HostSnapshot)
                    before, waits.lost_s = slot_kv.counters["restores"], 0.0
                    own = await first_token(engine, keys[size], prompt)
                    restored = slot_kv.counters["restores"] > before
                    lost_s = waits.lost_s
                    await empty(engine)
                    took = {}
                    for restore in chance.sample((True, False), 2):
                        cost.restore = restore
                        took[restore] = await first_token(engine, keys[size], prompt)
                        await empty(engine)
                    cost.restore = None
                    regret = (lost_s + took[restored]) / min(took.values()) - 1
                    restores += restored
                    regrets.append(regret)
                    by_the_clock.append(own / min(took.values()) - 1)
                    wander.append(abs(own / (lost_s + took[restored]) - 1))
                    if not number:
                        changed.append(regret)
                    did = "restored" if restored else f"recomputed after {lost_s:.3f} s"
                    print(
                        f"{speed:>5} MB/s {size:>5} tokens  restore {took[True]:.3f} s  recompute {took[False]:.3f} s"
                        f"  {did:<24} {own:.3f} s  regret {regret:.1%}  by the clock {by_the_clock[-1]:.1%}",
                        flush=True,
                    )
        gauges = engine.stats().gauges
        await engine.close()
    report(
        "kv_choice",
        {
            "cells": len(regrets),
            "restored": restores,
            **spread("regret_{}", regrets, "p50 p95 max"),
            "regret_p95_changed": percentile(changed, 0.95),
            "bar_p95": 0.15,
            "regret_p95_by_the_clock": percentile(by_the_clock, 0.95),
            "wander_p95": percentile(wander, 0.95),
            "prefill_tokens_per_s": gauges.get("prefill_tokens_per_s", 0.0),
        },
    )


if __name__ == "__main__":
    speeds = [1.5, 3.0, 6.0, 12.0, 25.0, 100.0]
    run_bench(main, __doc__, sizes=[128, 256, 512, 1024], mb_per_s=speeds, rounds=2, seed=1)
