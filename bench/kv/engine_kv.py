"""Four times more sessions than slots, taking turns round-robin at 3k tokens: what does a slot that was lost cost?

    python -m bench.kv.engine_kv --slots 2 --turns 3

The engine alone, without actors. Each session's first turn is a cold prefill of its whole context: the peer, in the
same run. Every later turn finds its slot taken by others, so its KV has to come back. `--host-mb` small enough sends
it through the disk tier. Bar: TTFT p50 of the returning turns at most 0.25 of re-prefill.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from bench.peer import MODEL
from bench.support import Option, percentile, report, run_bench, spread
from inference.llama import LlamaEngine, LlamaOptions
from sessions.model.generation import Chunk, Finish
from tests.support.engines.engines import key, prompt_of, request


class SavesLate(LlamaEngine):
    """Saves a session only when somebody takes its slot: to see what saving ahead is worth."""

    async def start(self) -> None:
        await super().start()
        await self._up.eager_saver.close()


class Talk:
    """One conversation, as an actor would drive it."""

    def __init__(self, engine: LlamaEngine, name: str) -> None:
        self.engine = engine
        self.key = key(name)
        self.ledger: tuple[int, ...] = ()
        self.cached = 0

    async def begin(self, tokens: int) -> None:
        words = f"{self.key.session} tells of rivers, mountains and the long road between them. " * tokens
        text = tuple(await self.engine.tokenizer.text(words))[:tokens]
        self.ledger = (*await self.engine.tokenizer.opening("Answer briefly.", ()), *text)

    async def turn(self, text: str, max_tokens: int) -> tuple[float, Finish]:
        """(seconds to the first token, the finish)"""
        prompt = await prompt_of(self.engine, text, before=self.ledger)
        started, first, finish = time.perf_counter(), 0.0, None
        answer: list[int] = []
        async for item in self.engine.generate(request(self.key, prompt, max_tokens=max_tokens)):
            if isinstance(item, Chunk):
                first = first or time.perf_counter() - started
                answer += item.tokens
            else:
                finish = item
        assert finish is not None
        self.ledger = (*prompt, *answer, *self.engine.tokenizer.answer_closing)
        return first, finish


async def main(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as folder:
        engine = (SavesLate if arguments.save_late else LlamaEngine)(
            LlamaOptions(
                model_path=MODEL,
                slots=arguments.slots,
                context_window=arguments.context + 1024,
                threads=1,
                host_bytes_max=arguments.host_mb * 1_000_000,
                disk_folder=Path(folder),
            )
        )
        await engine.start()
        talks = [Talk(engine, f"session-{number}") for number in range(arguments.sessions or 4 * arguments.slots)]
        cold: list[float] = []
        for talk in talks:
            await talk.begin(arguments.context)
            cold.append((await talk.turn("What is this about?", arguments.answer))[0])
        back: list[float] = []
        recomputed = reusable = 0
        gate = asyncio.Semaphore(arguments.at_once)

        async def one(talk: Talk, text: str) -> None:
            nonlocal recomputed, reusable
            async with gate:
                before = len(talk.ledger) - len(engine.tokenizer.answer_closing)
                first, finish = await talk.turn(text, arguments.answer)
                back.append(first)
                reusable += before
                recomputed += max(0, before - finish.cached_tokens)

        for number in range(arguments.turns):
            question = f"Question {number}: and what comes after the mountains, on the way to the river?"
            await asyncio.gather(*(one(talk, question) for talk in talks))
        counters = engine.stats().counters
        await engine.close()
    report(
        "engine_kv",
        {
            "sessions": len(talks),
            "slots": arguments.slots,
            "at_once": arguments.at_once,
            "save_late": arguments.save_late,
            "context_tokens": arguments.context,
            "reprefill_ttft_s_p50": percentile(cold, 0.5),
            **spread("returning_ttft_s_{}", back, "p50 p95"),
            "ratio_p50": percentile(back, 0.5) / percentile(cold, 0.5),
            "bar": 0.25,
            "recomputed_share": recomputed / reusable,
            **{name: counters.get(name, 0) for name in ("spills", "restores", "disk_writes", "disk_reads")},
        },
    )


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        slots=2,
        sessions=Option(0, "0: four for each slot"),
        turns=3,
        context=3000,
        answer=16,
        at_once=1,
        save_late=False,
        host_mb=1000,
    )
