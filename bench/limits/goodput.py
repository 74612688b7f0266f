"""Admission by service level: what gets through at twice the load that an engine can carry.

    python -m bench.limits.goodput --seconds 300

Actors, runtime and journal as they are, on the simulated engine with a GPU's batching cost, in virtual time. Turns
come by a Poisson process, each in a session of its own; a turn counts when its first token came within the TTFT
target and its mean time per later token is within the TPOT target. Bars: at 2 x capacity goodput >= 0.9 x that at
capacity; every turn that was refused got `retry_after_ms`; no turn was accepted and then forgotten (each ends in one
terminal event). Shown besides: goodput without admission at the same load, and with brownout: shorter answers; a
smaller model that takes what the model would be too late for (four times as fast, half the slots, on the same device:
while both have something to do each has half of it); both. And what becomes of the smaller model's part when the load
falls to nine tenths of capacity after a fifth of the time (`falls`). `level_changes` says how often the level went up
or down.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
from typing import Any, NamedTuple

import msgspec

from actors.directory.memory import MemoryDirectory
from actors.hosting.ownership import Identity
from actors.hosting.runtime import Runtime, RuntimeLimits
from actors.hosting.services import Inference
from bench.limits.fairness import GPU as SHARED_GPU
from bench.support import filler, report, run_bench
from inference.brownout_engine import make_brownout_engine
from inference.simulated import SimulatedEngine
from persistence.memory.journal import MemoryJournal
from sessions.actor.actor_context import ActorLimits
from sessions.actor.admission import Admission
from sessions.clock import Clock
from sessions.limits import BrownoutStep, Limits, Target
from sessions.model import commands as cm
from sessions.model.errors import SessileError
from sessions.model.events import (
    OutputTextDelta,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
)
from sessions.model.request import request_of
from sessions.model.types import LOCAL_PRINCIPAL, CommandId, ReplicaId, SessionId, SessionKey, UnixMs
from sessions.ports import Engine, Member, Published
from sessions.turn.keyword_filter import KeywordFilterSet
from sessions.turn.output_accumulator import GenerationLimits
from tests.support.percentiles import percentile
from tests.support.virtual_time import run as run_virtual

CAPACITY = 7.0  # turns a second, at which the engine below is busy all the time
TARGET = Target(ttft_ms=2_000, tpot_ms=50)
GPU = msgspec.structs.replace(SHARED_GPU, waiting_max=2_048)
SPEED = 4.0  # of the smaller model
SMALLER = GPU.smaller("smaller", SPEED, GPU.slots // 2)


class Sharing(SimulatedEngine):
    """One of two engines on a device: a step takes twice as long while the other has something to do."""

    beside: Sharing | None = None

    def step_s(self, decoding: int, prefill_tokens: int) -> float:
        alone_s = super().step_s(decoding, prefill_tokens)
        return alone_s * 2 if self.beside is not None and self.beside._running else alone_s


def paired() -> Engine:
    one, other = Sharing(GPU), Sharing(SMALLER)
    one.beside, other.beside = other, one
    return make_brownout_engine(one, lambda _: other)


class GoodputCase(NamedTuple):
    rate: float  # turns a second
    limits: Limits | None = None
    smaller: bool = False  # there is a smaller model
    then: float | None = None  # the rate after a fifth of the time

    def rate_at(self, share: float) -> float:
        return self.rate if self.then is None or share < 0.2 else self.then


class GoodputTurn:
    """One turn as its client lives it."""

    def __init__(self, asked_at: float) -> None:
        self.asked_at = asked_at
        self.first_at = 0.0
        self.last_at = 0.0
        self.tokens = 0
        self.ended = ""  # completed, incomplete, failed
        self.position = 0
        self.cut = False
        self.smaller = False
        self.refused: SessileError | None = None

    @property
    def good(self) -> bool:
        if self.ended not in ("completed", "incomplete") or not self.first_at:
            return False
        tpot_s = (self.last_at - self.first_at) / max(1, self.tokens - 1)
        return self.first_at - self.asked_at <= TARGET.ttft_ms / 1000 and tpot_s <= TARGET.tpot_ms / 1000


def sink(turn: GoodputTurn, over: asyncio.Event) -> Any:
    def take(published: Published) -> None:
        now = asyncio.get_running_loop().time()
        for record in published.records:
            match record.event:
                case OutputTextDelta():
                    turn.first_at = turn.first_at or now
                case ResponseCreated(response=body) if isinstance(body.service, dict):
                    turn.position = body.service.get("queue_position", 0)
                    turn.cut = "max_output_tokens" in body.service
                    turn.smaller = "smaller_model" in body.service
                case ResponseCompleted() | ResponseIncomplete() | ResponseFailed() as end:
                    turn.last_at = now
                    turn.ended = f"{turn.ended}{end.response.status}"
                    turn.tokens = int((end.response.usage or {}).get("output_tokens", 0))
                    over.set()

    return take


async def one(runtime: Runtime, number: int, chance: random.Random, turn: GoodputTurn) -> None:
    """A session with one turn, and its end."""
    session = SessionId(f"s{number}")
    over = asyncio.Event()
    unwatch = runtime.watch(SessionKey(LOCAL_PRINCIPAL.tenant, session), sink(turn, over))
    words = filler(chance.randint(60, 600), number)
    command = cm.TurnCreate(
        id=CommandId(f"c{number}"),
        session=session,
        create=cm.SessionSettings(listed=False),
        items=(cm.NewMessage(content=words),),
        max_output_tokens=chance.randint(50, 250),
    )
    try:
        await runtime.execute(request_of(LOCAL_PRINCIPAL, command))
        await over.wait()
    except SessileError as error:
        turn.refused = error
    finally:
        unwatch()


async def run(case: GoodputCase, seconds: float) -> tuple[list[GoodputTurn], list[int]]:
    """All turns of a load, each to its end; and the level of brownout as each came."""
    loop = asyncio.get_running_loop()
    engine: Engine = paired() if case.smaller else SimulatedEngine(GPU)
    journal, directory = MemoryJournal(), MemoryDirectory()
    await journal.open()
    await directory.open()
    await engine.start()
    replica = ReplicaId("local")
    limits = case.limits
    admission = None if limits is None else Admission(engine, lambda: limits, loop.time)
    ids = iter(range(10**9))
    turns: list[GoodputTurn] = []
    levels: list[int] = []
    async with Runtime(
        Identity(replica, "i"),
        journal=journal,
        directory=directory,
        inference=Inference(engine, KeywordFilterSet()),
        clock=Clock(lambda: UnixMs(round(loop.time() * 1000)), lambda: f"id{next(ids)}"),
        limits=RuntimeLimits(
            actor=ActorLimits(admission=admission, turn=GenerationLimits(rollup_s=1.0, rollup_bytes=1 << 20)),
            idle_s=20.0,
        ),
    ) as runtime:
        chance = random.Random(7)
        begun, at = loop.time(), 0.0
        keeper = asyncio.create_task(keep_announced(directory, replica))
        async with asyncio.TaskGroup() as group:
            while (at := at + chance.expovariate(case.rate_at(at / seconds))) < seconds:
                await asyncio.sleep(max(0.0, begun + at - loop.time()))
                turns.append(GoodputTurn(loop.time()))
                levels.append(0 if admission is None else admission.brownout.level)
                group.create_task(one(runtime, len(turns), random.Random(len(turns)), turns[-1]))
        keeper.cancel()
    await engine.close()
    return turns, levels


async def keep_announced(directory: MemoryDirectory, replica: ReplicaId) -> None:
    while True:
        await directory.announce(
            Member(replica=replica, incarnation="i", address="", model="simulated", fingerprint="f")
        )
        await asyncio.sleep(2.0)


def figures_of(turns: list[GoodputTurn], levels: list[int], seconds: float) -> dict[str, Any]:
    firsts = [turn.first_at - turn.asked_at for turn in turns if turn.first_at] or [0.0]
    refused = [turn.refused for turn in turns if turn.refused is not None]
    return {
        "turns": len(turns),
        "goodput_per_s": sum(turn.good for turn in turns) / seconds,
        "refused": len(refused),
        "refused_without_a_time": sum(not error.retry_after_ms for error in refused),
        "forgotten": sum(
            turn.refused is None and turn.ended not in ("completed", "incomplete", "failed") for turn in turns
        ),
        "failed": sum(turn.ended == "failed" for turn in turns),
        "told_their_place": sum(turn.position > 0 for turn in turns),
        "cut_short": sum(turn.cut for turn in turns),
        "by_smaller_share": sum(turn.smaller for turn in turns) / max(1, len(turns) - len(refused)),
        "level_changes": sum(before != after for before, after in itertools.pairwise(levels)),
        "level_at_end": levels[-1],
        "ttft_ms_p95": percentile(firsts, 0.95) * 1000,
    }


def measure(given: argparse.Namespace) -> bool:
    seconds = given.seconds

    def browned(*steps: int | BrownoutStep) -> Limits:
        return Limits(targets={"default": TARGET}, brownout=steps)

    smaller = BrownoutStep(smaller_model=True)
    both = (BrownoutStep(output_tokens=128, smaller_model=True), BrownoutStep(output_tokens=64, smaller_model=True))
    twice, less = 2 * CAPACITY, 0.9 * CAPACITY
    cases = {
        "capacity": GoodputCase(CAPACITY, browned()),
        "twice": GoodputCase(twice, browned()),
        "twice_brownout": GoodputCase(twice, browned(128, 64)),
        "twice_smaller": GoodputCase(twice, browned(smaller), smaller=True),
        "twice_both": GoodputCase(twice, browned(smaller, *both), smaller=True),
        "twice_without_admission": GoodputCase(twice),
        "falls": GoodputCase(twice, browned(), then=less),
        "falls_smaller": GoodputCase(twice, browned(smaller), smaller=True, then=less),
    }
    found = {name: figures_of(*run_virtual(run(case, seconds)), seconds) for name, case in cases.items()}
    ratio = found["twice"]["goodput_per_s"] / found["capacity"]["goodput_per_s"]
    sure = all(case["refused_without_a_time"] == 0 and case["forgotten"] == 0 for case in found.values())
    met = ratio >= 0.9 and sure
    figures = {f"{name}_{what}": value for name, case in found.items() for what, value in case.items()}
    verdict = "met" if met else "NOT MET"
    report("goodput", {"seconds": seconds, **figures, "goodput_ratio": ratio, "verdict": verdict})
    return met


if __name__ == "__main__":
    run_bench(measure, __doc__, seconds=300.0)
