"""Restore or recompute: what did deciding cost, over sizes and throttled tiers, with the crossover in range?

    python -m bench.kv_choice --rounds 2

Real llama.cpp on one thread, a real disk tier that is slowed to so many MB/s. In each cell of the sweep the cost model
says first what it would do, from what it has seen so far; then both ways are measured. Its regret is how much longer
what it chose took than the better of the two. Bar: p95 at most 15%. `settled` leaves out the cells in which the disk's
speed has just changed and nothing of it was measured yet: nobody can know that; `--learn` measures one session,
unjudged, after each change.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path

from bench.engine_kv import MODEL
from bench.support import percentile, report
from inference.kv.cold import ColdSnapshot
from inference.kv.cost import Choice, CostModel
from inference.kv.disk import DiskTier
from inference.kv.envelope import Manifest
from inference.kv.tiers import HostSnapshot
from inference.llama import LlamaEngine, LlamaOptions
from inference.tokens import as_tokens
from persistence.keys import MemoryKeys
from sessions.ports import Chunk, GenerationRequest
from sessions.types import ResponseId, Sampling, SessionId, SessionKey, TenantId


class Forced(CostModel):
    """Does as it is told while something is measured, and learns all the same."""

    restore = True

    def choose(self, tiers: tuple[str, ...], num_bytes: int, begin: int, end: int, now_s: float) -> Choice:
        return Choice(self.restore, 0.0, 1.0, 600.0)

    def advise(self, tiers: tuple[str, ...], num_bytes: int, begin: int, end: int, now_s: float) -> Choice:
        return super().choose(tiers, num_bytes, begin, end, now_s)


class SlowDisk:
    """A disk tier's `fetch` at so many bytes per second."""

    def __init__(self, disk: DiskTier) -> None:
        self.bytes_per_s = 1e12
        self._fetch = disk.fetch
        disk.fetch = self.fetch  # type: ignore[method-assign]

    async def fetch(self, snapshot: ColdSnapshot, payload: Path) -> Manifest:
        begun = time.monotonic()
        manifest = await self._fetch(snapshot, payload)
        await asyncio.sleep(max(0.0, snapshot.bytes / self.bytes_per_s - (time.monotonic() - begun)))
        return manifest


async def first_token(engine: LlamaEngine, key: SessionKey, prompt: tuple[int, ...]) -> float:
    request = GenerationRequest(
        key=key,
        response_id=ResponseId("r"),
        generation=1,
        prompt=prompt,
        sampling=Sampling(temperature=0),
        seed=1,
        max_tokens=1,
    )
    begun, first = time.perf_counter(), 0.0
    async for item in engine.generate(request):
        if isinstance(item, Chunk):
            first = first or time.perf_counter() - begun
    return first


async def forget_all(engine: LlamaEngine) -> None:
    """Slots and host memory are empty afterwards; the disk is not."""
    tiers = engine._residency.tiers
    for slot in engine._table:
        if not slot.busy:
            await engine._residency.save(slot)
            engine._table.forget(slot)
    await tiers._settle()
    for snapshot in tuple(tiers._all()):
        await tiers._drop(snapshot)


async def main(arguments: argparse.Namespace) -> None:
    chance, cost = random.Random(arguments.seed), Forced()
    regrets: list[float] = []
    settled: list[float] = []
    restores = 0
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as folder:
        options = LlamaOptions(
            model_path=MODEL, slots=2, context_window=4096, threads=1, disk_folder=Path(folder), save_idle_s=3600.0
        )
        engine = LlamaEngine(options, MemoryKeys(), cost=cost)
        await engine.start()
        tiers = engine._residency.tiers
        assert tiers.disk is not None
        slow = SlowDisk(tiers.disk)
        text = tuple(await engine.tokenizer.text("rivers and mountains and the long road between them " * 400))
        keys = {size: SessionKey(TenantId("bench"), SessionId(f"s{size}")) for size in arguments.sizes}
        for size, key in keys.items():
            await first_token(engine, key, text[:size])
        await forget_all(engine)
        for _ in range(arguments.rounds):
            for speed in chance.sample(arguments.mb_per_s, len(arguments.mb_per_s)):
                slow.bytes_per_s = speed * 1e6
                sizes = chance.sample(arguments.sizes, len(arguments.sizes))
                unjudged = [arguments.sizes[1]] if arguments.learn else []
                for number, size in enumerate(unjudged + sizes):
                    prompt = (*text[:size], *text[7:23])
                    snapshot, shared = tiers.find(keys[size], as_tokens(prompt))
                    assert snapshot is not None and not isinstance(snapshot, HostSnapshot)
                    choice = cost.advise(("disk", "device"), snapshot.bytes, 0, shared, time.monotonic())
                    took = {}
                    for restore in chance.sample((True, False), 2):
                        cost.restore = restore
                        took[restore] = await first_token(engine, keys[size], prompt)
                        for slot in engine._table:
                            engine._table.forget(slot)  # the next way begins from nothing as well
                        for held in tuple(tiers._all()):
                            await tiers._drop(held)
                    regret = took[choice.restore] / min(took.values()) - 1
                    judged = number >= len(unjudged)
                    if judged:
                        restores += choice.restore
                        regrets.append(regret)
                    if number:
                        settled.append(regret)
                    print(
                        f"{speed:>5} MB/s {size:>5} tokens  restore {took[True]:.2f} s  recompute {took[False]:.2f} s"
                        f"  chose {'restore' if choice.restore else 'recompute':<9}  regret {regret:.1%}"
                        f"{'' if judged else '  (learning)'}",
                        flush=True,
                    )
        gauges = engine.stats().gauges
        await engine.close()
    report(
        "kv_choice",
        {
            "cells": len(regrets),
            "chose_restore": restores,
            "regret_p50": percentile(regrets, 0.5),
            "regret_p95": percentile(regrets, 0.95),
            "regret_max": max(regrets),
            "regret_p95_settled": percentile(settled, 0.95),
            "bar_p95": 0.15,
            "prefill_tokens_per_s": gauges.get("prefill_tokens_per_s", 0.0),
        },
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--mb-per-s", type=float, nargs="+", default=[1.5, 3.0, 6.0, 12.0, 25.0, 100.0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--learn", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    asyncio.run(main(parser.parse_args()))
