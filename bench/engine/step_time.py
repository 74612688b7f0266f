"""Who waits while long prompts are computed? Answers and follow-ups beside cold prompts, and what small steps cost.

    python -m bench.engine.step_time                                     # llama.cpp
    .venv-vllm/bin/python -m bench.engine.step_time --engine vllm        # in vLLM's own environment

Two engines are up, one with steps of `--target-ms` (0: the default) and one whose steps are as large as the engine
takes; one works at a time. In each of `--pairs` pairs, on other words each time:

* cold prompts alone, on both in turns which first, each with a short greedy answer. Bar: at least 0.95 times the
  tokens/s in small steps, and the same text (vLLM computes in fp32 here; several tokens at once round otherwise on
  llama.cpp, whose differences are counted without a bar);
* an answer that is being written while cold prompts come, one after another. Bar: p99 of the time between its tokens
  at most twice the target;
* follow-ups of sessions that are on the device but for 5%, alone and while a cold prompt is computed. Bar: p95 of the
  first token at most that of the same alone and two steps.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.support import Option, report, run_bench
from inference.step_budget import TARGET_CPU_MS
from sessions.model.generation import Chunk, GenerationRequest
from sessions.model.types import ResponseId, Sampling, SessionId, SessionKey, TenantId
from sessions.ports import Engine
from tests.support.percentiles import percentile

SLOTS: Final = 4
VOCABULARY: Final = 40_000
WHOLE_MS: Final = 3_600_000
ANSWER: Final = 16


def words(chance: random.Random, count: int) -> list[int]:
    """Tokens that nobody else's prompt begins with."""
    return [chance.randrange(100, VOCABULARY) for _ in range(count)]


class TimedAnswer:
    """The tokens of an answer, and when each came."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.first_s = 0.0
        self.gaps_s: list[float] = []
        self.writing = asyncio.Event()


class SteppedEngine:
    """One of the two engines, asked token for token."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def generate(
        self, session: str, prompt: Sequence[int], most: int, into: TimedAnswer | None = None
    ) -> TimedAnswer:
        answer, begun = into or TimedAnswer(), time.perf_counter()
        before = 0.0
        asked = GenerationRequest(
            key=SessionKey(TenantId("bench"), SessionId(session)),
            response_id=ResponseId("r"),
            generation=1,
            prompt=tuple(prompt),
            sampling=Sampling(temperature=0, ignore_eos=True),
            seed=1,
            max_tokens=most,
        )
        async for item in self._engine.generate(asked):
            if isinstance(item, Chunk) and item.tokens:
                now = time.perf_counter()
                if before:
                    answer.gaps_s.append(now - before)
                answer.first_s = answer.first_s or now - begun
                answer.tokens.extend(item.tokens)
                before = now
                answer.writing.set()
        return answer

    async def cold(self, name: str, prompts: Sequence[Sequence[int]]) -> tuple[float, list[list[int]]]:
        """(tokens of prompts a second, the answers)"""
        begun, answers = time.perf_counter(), []
        for number, prompt in enumerate(prompts):
            answers.append((await self.generate(f"{name}-{number}", prompt, ANSWER)).tokens)
        return sum(map(len, prompts)) / (time.perf_counter() - begun), answers

    async def gaps(self, name: str, chance: random.Random, prompts: Sequence[Sequence[int]], most: int) -> list[float]:
        """Times between the tokens of an answer that is written while the prompts come."""
        answer = TimedAnswer()
        writing = asyncio.create_task(self.generate(f"{name}-answer", words(chance, 40), most, answer))
        await answer.writing.wait()
        begun = len(answer.gaps_s)
        await self.cold(f"{name}-beside", prompts)
        ended = len(answer.gaps_s)
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing
        return answer.gaps_s[begun:ended]

    async def follow_ups(
        self, name: str, chance: random.Random, tokens: int, prompts: Sequence[Sequence[int]]
    ) -> tuple[list[float], list[float]]:
        """Times to the first tokens: alone, and each beside one of the prompts."""
        known = words(chance, tokens)
        known += (await self.generate(name, known, ANSWER)).tokens
        firsts: tuple[list[float], list[float]] = ([], [])
        for number, prompt in enumerate(prompts):
            for beside in (False, True):
                asked = [*known, *words(chance, max(8, tokens // 20))]
                filling = asyncio.create_task(self.generate(f"{name}-cold-{number}", prompt, 1)) if beside else None
                if filling is not None:
                    await asyncio.sleep(0.2)  # it is being computed
                answer = await self.generate(name, asked, ANSWER)
                if filling is None or not filling.done():
                    firsts[beside].append(answer.first_s)
                known = asked + answer.tokens
                if filling is not None:
                    await filling
        return firsts


@contextlib.asynccontextmanager
async def stepped(given: argparse.Namespace, target_ms: int) -> AsyncIterator[SteppedEngine]:
    with tempfile.TemporaryDirectory() as folder:
        engine = _vllm(given, target_ms) if given.engine == "vllm" else _llama(given, target_ms, Path(folder))
        await engine.start()
        try:
            yield SteppedEngine(engine)
        finally:
            await engine.close()


def _llama(given: argparse.Namespace, target_ms: int, folder: Path) -> Any:
    from bench.peer import MODEL
    from inference.llama import LlamaEngine, LlamaOptions

    return LlamaEngine(
        LlamaOptions(
            model_path=MODEL,
            slots=SLOTS,
            threads=given.threads,
            context_window=_window(given),
            staging_folder=folder,
            step_target_ms=target_ms,
        )
    )


def _vllm(given: argparse.Namespace, target_ms: int) -> Any:
    from bench.engine.vllm_support import MODEL
    from inference.vllm.engine import VllmEngine, VllmOptions

    return VllmEngine(
        VllmOptions(
            model_path=MODEL,
            slots=SLOTS,
            threads=given.threads,
            context_window=_window(given),
            device_kv_bytes=2 << 30,
            step_target_ms=target_ms,
            engine_args={"dtype": "float32"},
        )
    )


def _window(given: argparse.Namespace) -> int:
    tokens: int = given.tokens
    return max(1024, -(-2 * tokens // 256) * 256)


async def main(given: argparse.Namespace) -> bool:
    target_s = (given.target_ms or TARGET_CPU_MS) / 1000
    rates, gaps, alone, beside, differ = [], list[float](), list[float](), list[float](), 0
    async with stepped(given, given.target_ms) as small, stepped(given, WHOLE_MS) as large:
        for engine in (small, large):  # paces are measured, pages touched
            await engine.cold("first", [words(random.Random(given.seed - 1), given.tokens)])
        for pair in range(given.pairs):
            chance = random.Random(given.seed + pair)
            prompts = [words(chance, given.tokens) for _ in range(given.prompts)]
            played = {}
            for engine in (small, large) if pair % 2 else (large, small):
                played[engine] = await engine.cold(f"{pair}", prompts)
            rates.append(played[small][0] / played[large][0])
            differ += sum(a != b for a, b in zip(played[small][1], played[large][1], strict=True))
            others = [words(chance, given.tokens) for _ in range(given.prompts)]
            gaps += await small.gaps(f"{pair}", chance, others, given.tokens // 2)
            others = [words(chance, given.tokens) for _ in range(given.prompts)]
            for into, firsts in zip(
                (alone, beside), await small.follow_ups(f"{pair}-back", chance, given.tokens // 2, others), strict=True
            ):
                into += firsts
            beyond_steps = (percentile(beside, 0.95) - percentile(alone, 0.95)) / target_s
            print(
                f"{pair}: cold prompts in small steps {rates[-1]:.2f} x; so far {differ} differ, between tokens p99"
                f" {percentile(gaps, 0.99) / target_s:.2f} x the target, a follow-up {beyond_steps:.2f} steps later",
                flush=True,
            )
    figures = {
        "pairs": given.pairs,
        "target ms": 1000 * target_s,
        "cold prompts in small steps, x the rate (bar 0.95)": sum(rates) / len(rates),
        "answers that differ": differ,
        "time between tokens p99, x the target (bar 2)": percentile(gaps, 0.99) / target_s,
        "follow-up alone, TTFT p95 ms": 1000 * percentile(alone, 0.95),
        "follow-up beside a cold prompt, TTFT p95 ms": 1000 * percentile(beside, 0.95),
        "and that in steps behind it alone (bar 2)": (percentile(beside, 0.95) - percentile(alone, 0.95)) / target_s,
    }
    report(f"step_time_{given.engine}", figures)
    return (
        figures["cold prompts in small steps, x the rate (bar 0.95)"] >= 0.95
        and figures["time between tokens p99, x the target (bar 2)"] <= 2
        and figures["and that in steps behind it alone (bar 2)"] <= 2
        and (given.engine == "llama" or not differ)
    )


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        engine=Option("llama", choices=("llama", "vllm")),
        pairs=5,
        prompts=2,
        tokens=Option(4000, "of a cold prompt"),
        target_ms=Option(0, "how long a step may last; 0: the default"),
        threads=2,
        seed=44,
    )
