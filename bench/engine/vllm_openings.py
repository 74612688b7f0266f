"""Sessions of a tenant that begin with the same instructions, on vLLM: what these cost on the device, and in time.

    .venv-vllm/bin/python -m bench.engine.vllm_openings --sessions 32 --opening 2000

The device has 1.1 × the blocks that one copy of the opening and each session's own part need, and nothing is saved.
Each session takes its first turn, one after another; then each asks the same again, and finds all of its prompt on the
device where it all lies there at once. Cold is the first token of sessions whose openings nobody else has. Sessions of
another tenant begin so in between, and must find nothing.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from bench.engine.vllm_support import BLOCK, VllmTurn, options, request, running, words
from bench.support import report, run_bench, spread
from inference.vllm.engine import VllmEngine
from sessions.model.types import SessionId, SessionKey, TenantId
from tests.support.percentiles import percentile

QUESTION: Final = 40
ANSWER: Final = 8
COLD: Final = 3
ROOM_BAR: Final = 1.1
TTFT_BAR: Final = 0.2


async def turn(engine: VllmEngine, name: str, prompt: list[int], shared: int, tenant: str = "bench") -> VllmTurn:
    asked = msgspec.structs.replace(
        request(name, prompt, ANSWER), key=SessionKey(TenantId(tenant), SessionId(name)), shared_prefix=shared
    )
    return await VllmTurn.of(engine, asked)


async def main(arguments: argparse.Namespace) -> bool:
    rng = random.Random(arguments.seed)
    opening = words(rng, arguments.opening)
    prompts = [[*opening, *words(rng, QUESTION)] for _ in range(arguments.sessions)]
    shared = arguments.opening // BLOCK
    own = math.ceil((arguments.opening + QUESTION + ANSWER) / BLOCK) - shared
    room = int(ROOM_BAR * (shared + arguments.sessions * own))
    with tempfile.TemporaryDirectory() as folder:
        settings = options(
            Path(folder),
            "float32",
            slots=2,
            context_window=(arguments.opening // BLOCK + 4) * BLOCK,
            device_blocks=1 + room,  # vLLM keeps one for itself
            write_through=False,
        )
        async with running(settings) as engine:
            await turn(engine, "warm", words(rng, 64), 0)
            cold = []
            for number in range(COLD):
                alone = await turn(engine, f"cold{number}", words(rng, arguments.opening + QUESTION), arguments.opening)
                cold.append(alone.ttft_s)
                await engine.release(SessionKey(TenantId("bench"), SessionId(f"cold{number}")))
            first = [await turn(engine, f"s{n}", prompt, len(opening)) for n, prompt in enumerate(prompts)]
            again = [await turn(engine, f"s{n}", prompt, len(opening)) for n, prompt in enumerate(prompts)]
            foreign = await turn(engine, "s0", prompts[0], len(opening), tenant="other")
            restores = engine.stats().counters.get("restores", 0)
    whole = (arguments.opening + QUESTION - 1) // BLOCK * BLOCK
    resident = sum(one.cached == whole for one in again)
    ratio = percentile([one.ttft_s for one in first[1:]], 0.5) / percentile(cold, 0.5)
    report(
        "vllm_openings",
        {
            "sessions": arguments.sessions,
            "tokens of the opening": arguments.opening,
            "device blocks": room,
            "blocks that one copy and all own parts need": shared + arguments.sessions * own,
            "sessions that lie there whole at once": resident,
            "cold TTFT p50 ms": 1000 * percentile(cold, 0.5),
            **spread("TTFT from the second on {} ms", [one.ttft_s for one in first[1:]], "p50 p95 max", times=1000),
            "TTFT against cold (bar 0.2)": ratio,
            "tokens that another tenant found": foreign.cached,
            "restores": restores,
        },
    )
    return resident == arguments.sessions and ratio <= TTFT_BAR and foreign.cached == 0 and not restores


if __name__ == "__main__":
    run_bench(main, __doc__, sessions=32, opening=2_000, seed=1)
