"""How fast llama.cpp computes a long prompt beside streams that decode, and how much they get meanwhile.

    python -m bench.engine.prefill --tokens 1536 --beside 0 1 3

Through the engine itself, one engine thread, four slots. The prompt is random words that nobody has said before; from
the request to its first token.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench.peer import MODEL
from bench.support import Option, filler, report, run_bench
from inference.llama import LlamaEngine, LlamaOptions
from sessions.model.generation import Chunk, Finish
from sessions.model.types import Sampling
from tests.support.engines.engines import key, prompt_of, request

SLOTS = 4
GOES_ON = Sampling(temperature=0.0, logit_bias={"0": -100.0, "2": -100.0})  # the small model's ends are never said


async def measure(engine: LlamaEngine, tokens: int, beside: int, number: int) -> tuple[float, int]:
    """(seconds to the first token of a prompt, tokens that all the others got until then)."""
    said = 0

    async def listen(stream: AsyncIterator[Chunk | Finish]) -> None:
        nonlocal said
        async for part in stream:
            said += len(part.tokens) if isinstance(part, Chunk) else 0

    others = []
    for index in range(beside):
        prompt = await prompt_of(engine, f"{number} {index}: tell me a long story.")
        who = key(f"beside{number}-{index}")
        stream = engine.generate(request(who, prompt, max_tokens=6000, sampling=GOES_ON))
        await anext(stream)
        others.append(asyncio.create_task(listen(stream)))
    prompt = (await prompt_of(engine, filler(2 * tokens, number)))[:tokens]
    before, begun = said, time.perf_counter()
    async for _ in engine.generate(request(key(f"long{number}"), prompt, max_tokens=1)):
        break
    took, meanwhile = time.perf_counter() - begun, said - before
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return took, meanwhile


async def main(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as folder:
        engine = LlamaEngine(LlamaOptions(model_path=MODEL, slots=SLOTS, threads=1, staging_folder=Path(folder)))
        await engine.start()
        try:
            for number, beside in enumerate(arguments.beside):
                took, meanwhile = await measure(engine, arguments.tokens, beside, number)
                figures = {"prompt tokens": arguments.tokens, "streams beside it": beside}
                report("prefill", {**figures, "tokens/s": arguments.tokens / took, "tokens of the others": meanwhile})
        finally:
            await engine.close()


if __name__ == "__main__":
    run_bench(main, __doc__, tokens=1536, beside=Option([0, 1, 3], choices=range(SLOTS)))
