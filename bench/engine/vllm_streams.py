"""vLLM with everything resident: tokens/s through our engine against vLLM's own server, in vLLM's own environment:

    .venv-vllm/bin/python -m bench.engine.vllm_streams --pairs 10 --streams 1 --answer 192
    .venv-vllm/bin/python -m bench.engine.vllm_streams --pairs 10 --streams 8 --answer 96
    .venv-vllm/bin/python -m bench.engine.vllm_streams --pairs 10 --streams 32 --answer 64

Both stand side by side and answer in turns, never at once; the same prompts, all of them on the device already, the
same number of answer tokens. A pair is eight runs in the order of `bench.pairs`, its ratio that of their times. Bar:
the 95% lower bound of the ratio is 0.95 or more at each number of streams.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path

from bench.engine.vllm_support import BLOCK, VllmTurn, answer_to, endings, options, peer, running, served, settle, words
from bench.pairs import ORDER
from bench.support import Option, lower_bound, report, run_bench

BAR = 0.95
PROMPT = 96
WINDOW = 2048


async def compare(folder: Path, pairs: int, streams: list[int], tokens: int) -> None:
    most = max(streams)
    blocks = 1 + 2 * most * (PROMPT + tokens + BLOCK) // BLOCK
    chance = random.Random(7)
    prompts = [words(chance, PROMPT) for _ in range(most)]
    blocks = max(blocks, 1 + WINDOW // BLOCK)
    wanted = options(folder, "bfloat16", disk_folder=None, device_blocks=blocks, context_window=WINDOW, slots=most)
    async with running(wanted) as engine, peer(blocks, most, WINDOW) as client:
        never = endings(engine)

        async def ours(count: int) -> float:
            begun = time.perf_counter()
            turns = await asyncio.gather(*(answer_to(engine, f"s{n}", prompts[n], tokens, never) for n in range(count)))
            rate = _rate(turns, time.perf_counter() - begun, tokens)
            await settle(engine)
            return rate

        async def theirs(count: int) -> float:
            begun = time.perf_counter()
            turns = await asyncio.gather(*(served(client, prompts[n], tokens, never) for n in range(count)))
            return _rate(turns, time.perf_counter() - begun, tokens)

        for count in streams:
            for run in (ours, theirs):
                await run(count)  # every prompt is resident from here on
            sides = {"ours": ours, "theirs": theirs}
            ratios: list[float] = []
            rates: list[dict[str, float]] = []
            for _ in range(pairs):
                took = dict.fromkeys(sides, 0.0)  # for a token, over all runs of the pair
                for side in ORDER:
                    took[side] += 1 / await sides[side](count)
                ratios.append(took["theirs"] / took["ours"])
                rates.append({side: ORDER.count(side) / seconds for side, seconds in took.items()})
            bound = lower_bound(ratios)
            report(
                "vllm streams",
                {
                    "streams": count,
                    "pairs": pairs,
                    "tokens_each": tokens,
                    "ours_tokens_per_s": sum(rate["ours"] for rate in rates) / pairs,
                    "vllm_tokens_per_s": sum(rate["theirs"] for rate in rates) / pairs,
                    "ratio_mean": sum(ratios) / pairs,
                    "ratio_lower_bound": bound,
                    "ratio_least": min(ratios),
                    "ratio_greatest": max(ratios),
                    "bar": BAR,
                    "met": bound >= BAR,
                },
            )


def _rate(turns: list[VllmTurn], elapsed_s: float, tokens: int) -> float:
    assert all(len(turn.tokens) == tokens for turn in turns), "an answer ended early"
    return len(turns) * tokens / elapsed_s


async def main(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as scratch:
        await compare(Path(scratch), arguments.pairs, arguments.streams, arguments.answer)


if __name__ == "__main__":
    run_bench(main, __doc__, pairs=10, streams=[1, 8, 32], answer=Option(64, "tokens of each answer"))
