"""Two tenants on one engine, one flooding it with 20 times its share: how long the other waits for its first token.

    python -m bench.limits.fairness                 # simulated, with a GPU's batching cost, in virtual time
    python -m bench.limits.fairness --engine llama  # llama.cpp with the small model, in real time
    .venv-vllm/bin/python -m bench.limits.fairness --engine vllm

Bar: the other tenant's TTFT p95 <= 1.5 x what it is when it is alone. It asks at `--load` of its own share (half of
what the engine can do), by a Poisson process; alone and beside the flood it asks the same at the same times,
on the same engine. Turns that have said nothing when the time is over do not count; both runs leave them. What is
shown besides: that each tenant gets its share of tokens when both flood, and how often an answer had to make room.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from bench.peer import MODEL
from bench.support import Option, report, run_bench, spread
from inference.llama import LlamaEngine, LlamaOptions
from inference.simulated import SimulatedEngine, SimulatedOptions
from sessions.model.errors import Overloaded
from sessions.model.generation import Chunk
from sessions.ports import Engine
from tests.support.engines.engines import key, request
from tests.support.percentiles import percentile
from tests.support.virtual_time import run as run_virtual

GPU = SimulatedOptions(
    slots=32,
    waiting_max=512,
    step_base_s=0.012,
    step_per_stream_s=0.0002,
    prefill_tokens_per_s=20_000,
    prefill_chunk_tokens=512,
    answer_tokens_mean=0,
)


class Shape(NamedTuple):
    """Of the traffic: turns a second that the engine can do, and what a turn is made of."""

    capacity: float
    prompt_tokens: tuple[int, int]
    answer_tokens: tuple[int, int]


SIMULATED = Shape(capacity=9.0, prompt_tokens=(100, 900), answer_tokens=(50, 250))
LLAMA = Shape(capacity=0.9, prompt_tokens=(40, 120), answer_tokens=(30, 60))
VLLM = LLAMA._replace(capacity=1.2)


class TrafficRequest(NamedTuple):
    at: float
    prompt: tuple[int, ...]
    answer_tokens: int


def traffic(shape: Shape, rate: float, seconds: float, seed: int) -> list[TrafficRequest]:
    """When somebody asks what: the same for the same seed."""
    chance = random.Random(seed)
    found, at = [], 0.0
    while (at := at + chance.expovariate(rate)) < seconds:
        length = chance.randint(*shape.prompt_tokens)
        prompt = tuple(chance.randrange(300, 4000) for _ in range(length))
        found.append(TrafficRequest(at, prompt, chance.randint(*shape.answer_tokens)))
    return found


class Tenant:
    """Somebody who asks, and what came of it."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self.engine = engine
        self.ttft_s: list[float] = []
        self.tokens = 0
        self.shed = 0

    async def turn(self, number: int, asked: TrafficRequest) -> None:
        loop = asyncio.get_running_loop()
        who = key(f"{self.name}{number}", self.name)
        begun, first = loop.time(), 0.0
        try:
            async for part in self.engine.generate(
                request(who, asked.prompt, max_tokens=asked.answer_tokens, seed=number)
            ):
                if isinstance(part, Chunk):
                    if not first:
                        first = loop.time()
                        self.ttft_s.append(first - begun)
                    self.tokens += len(part.tokens)
        except Overloaded:
            self.shed += 1
        await self.engine.release(who)

    async def send(self, traffic: list[TrafficRequest], seconds: float) -> None:
        """Asks as the traffic says; what is still under way when the time is over is left."""
        begun = asyncio.get_running_loop().time()
        running: set[asyncio.Task[None]] = set()
        for number, asked in enumerate(traffic):
            await asyncio.sleep(max(0.0, begun + asked.at - asyncio.get_running_loop().time()))
            task = asyncio.create_task(self.turn(number, asked))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.sleep(max(0.0, begun + seconds - asyncio.get_running_loop().time()))
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Seen(NamedTuple):
    other: Tenant
    flood: Tenant
    preemptions: float


async def run(engine: Engine, shape: Shape, seconds: float, *, other: float, flood: float) -> Seen:
    """`other` and `flood` are turns a second."""
    await engine.start()
    tenants = Tenant("other", engine), Tenant("flood", engine)
    rates = other, flood
    try:
        await asyncio.gather(
            *(
                tenant.send(traffic(shape, rate, seconds, seed), seconds)
                for tenant, rate, seed in zip(tenants, rates, (1, 2), strict=True)
                if rate
            )
        )
        return Seen(*tenants, engine.stats().counters["preemptions"])
    finally:
        await engine.close()


def vllm_engine() -> Engine:
    from bench.engine.vllm_support import options
    from inference.vllm.engine import VllmEngine

    folder = Path(tempfile.mkdtemp(prefix="sessile-fairness-"))
    return VllmEngine(options(folder, "float32", slots=4, waiting_max=64, context_window=1024, spill=False))


def measure(arguments: argparse.Namespace) -> bool:
    real = arguments.engine != "sim"
    shape = {"sim": SIMULATED, "llama": LLAMA, "vllm": VLLM}[arguments.engine]
    share = shape.capacity / 2

    def go(work: Coroutine[Any, Any, Seen]) -> Seen:
        return asyncio.run(work) if real else run_virtual(work)

    def engine() -> Engine:
        if arguments.engine == "vllm":
            return vllm_engine()
        if not real:
            return SimulatedEngine(GPU)
        return LlamaEngine(LlamaOptions(model_path=MODEL, slots=4, context_window=1024, waiting_max=64))

    asks = share * arguments.load
    alone = go(run(engine(), shape, arguments.seconds, other=asks, flood=0)).other
    beside = go(run(engine(), shape, arguments.seconds, other=asks, flood=20 * share))
    other, flood = beside.other, beside.flood
    ratio = percentile(other.ttft_s, 0.95) / percentile(alone.ttft_s, 0.95)
    met = ratio <= 1.5 and not other.shed
    figures: dict[str, Any] = {
        "engine": arguments.engine,
        "seconds": arguments.seconds,
        "other_load_of_its_share": arguments.load,
        "turns": len(alone.ttft_s),
        **spread("alone_ttft_ms_{}", alone.ttft_s, "p50 p95", times=1000),
        **spread("beside_ttft_ms_{}", other.ttft_s, "p50 p95", times=1000),
        "ttft_p95_ratio": ratio,
        "turns_shed_of_the_other": other.shed,
        "tokens_of_the_other": other.tokens,
        "tokens_of_the_flood": flood.tokens,
        "turns_shed_of_the_flood": flood.shed,
        "flood_ttft_ms_p50": percentile(flood.ttft_s, 0.5) * 1000,
        "answers_that_made_room": beside.preemptions,
    }
    if not real:
        both = go(run(engine(), shape, arguments.seconds, other=20 * share, flood=20 * share))
        figures["both_flooding_share_of_the_other"] = both.other.tokens / (both.other.tokens + both.flood.tokens)
    report("fairness", {**figures, "verdict": "met" if met else "NOT MET"})
    return met


if __name__ == "__main__":
    share = Option(0.5, "the other tenant's, as part of its share")
    run_bench(measure, __doc__, engine=Option("sim", choices=["sim", "llama", "vllm"]), seconds=120.0, load=share)
