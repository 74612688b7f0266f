"""A 4k-token session on a fresh engine, restored against cold; then an edit in the middle of it.

    python -m bench.kv.restore --context 4000 --rounds 3

Each round starts an engine anew on the same folder. It answers the session's next turn from what the disk tier holds
(decrypted, checked, into a slot), then, for another session of the same length, by a cold prefill: the peer, same run.
Bar: time to the first token at least 10 x lower, and greedy output as where the KV had stayed. Last, turn 5 of 10 is
edited: bar: only tokens after the fork are computed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from bench.peer import MODEL
from bench.support import percentile, report, run_bench, spread
from inference.llama import LlamaEngine, LlamaOptions
from persistence.keys import MemoryKeyStore
from sessions.model.generation import Chunk, Finish
from testbed.engine_client import key, prompt_of, request


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


def engine_on(folder: Path, keys: MemoryKeyStore, context: int) -> LlamaEngine:
    return LlamaEngine(
        LlamaOptions(
            model_path=MODEL,
            slots=2,
            context_window=max(context, 2_400) + 1_024,  # the edited conversation has ten long turns beside it
            threads=1,
            disk_folder=folder,
        ),
        keys,
    )


async def main(arguments: argparse.Namespace) -> None:
    keys = MemoryKeyStore()
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as scratch:
        folder = Path(scratch) / "kv"
        engine = engine_on(folder, keys, arguments.context)
        await engine.start()
        talk = Talk(engine, "returning")
        await talk.begin(arguments.context)
        await talk.turn("What is this about?", 16)
        ledger = talk.ledger
        await talk.turn("And what comes after the mountains?", 16)  # the KV stayed: what is right
        expected = talk.ledger
        await engine.close()

        restored: list[float] = []
        cold: list[float] = []
        same = 0
        for number in range(arguments.rounds):
            engine = engine_on(folder, keys, arguments.context)
            await engine.start()
            talk = Talk(engine, "returning")
            talk.ledger = ledger
            first, finish = await talk.turn("And what comes after the mountains?", 16)
            restored.append(first)
            same += talk.ledger == expected
            reused = finish.cached_tokens
            other = Talk(engine, f"cold-{number}")
            other.ledger = ledger
            first, finish = await other.turn("And what comes after the mountains?", 16)
            assert finish.cached_tokens == 0
            cold.append(first)
            await engine.release(other.key)
            counters = engine.stats().counters
            await engine.close()

        engine = engine_on(folder, keys, arguments.context)
        await engine.start()
        talk = Talk(engine, "edited")
        await talk.begin(arguments.context * 2 // 5)
        forks: list[tuple[int, ...]] = []
        filler = "Here is more about the river: " + "it winds through the hills and on to the sea. " * 20
        for turn in range(10):
            forks.append(talk.ledger)
            await talk.turn(f"{turn}. {filler}", 16)
        whole = len(talk.ledger)
        others = [Talk(engine, f"crowd-{n}") for n in range(4)]
        for crowd in others:  # its slot is gone, and so is whatever a slot would have kept by itself
            await crowd.begin(64)
            await crowd.turn("Hello.", 2)
        talk.ledger = forks[4]
        before = engine.stats().counters
        edit_first, edit = await talk.turn(f"4, edited. {filler}", 16)
        computed = edit.prompt_tokens - edit.cached_tokens
        # The answer's last token was never computed, and a closing mark comes after it.
        after_fork = edit.prompt_tokens - len(forks[4])
        place = engine.stats().counters["restores"] - before["restores"]
        await engine.release(talk.key)
        assert engine.place(talk.key).tier == "none"
        await engine.close()
    report(
        "kv_restore",
        {
            "context_tokens": len(ledger),
            "cold_ttft_s_p50": percentile(cold, 0.5),
            **spread("restored_ttft_s_{}", restored, "p50 max"),
            "times_faster_p50": percentile(cold, 0.5) / percentile(restored, 0.5),
            "times_faster_worst": min(cold) / max(restored),
            "bar": 10,
            "reused_tokens": reused,
            "same_output": f"{same} of {arguments.rounds}",
            "disk_reads_last_round": counters["disk_reads"],
            "edit_conversation_tokens": whole,
            "edit_prompt_tokens": edit.prompt_tokens,
            "edit_tokens_after_the_fork": after_fork,
            "edit_tokens_computed": computed,
            "edit_ttft_s": edit_first,
            "edit_restores": place,
        },
    )


if __name__ == "__main__":
    run_bench(main, __doc__, context=4000, rounds=3)
