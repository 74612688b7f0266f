"""Cancel: how soon the engine's slot is free, and that no delta follows the answer.

    python -m bench.cancel --rounds 100

llama.cpp with one slot, so that the slot's freedom shows from outside: each round cancels an answer at a random moment
and asks again at once; the next answer's first token cannot come before the slot is free. The figure is
cancel sent → the engine reports the slot idle, by its own metric over HTTP where it has one, else the bound that the
next turn gives (its prefill included), minus one step and the prefill measured in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from typing import Any

from bench.support import Server, connected, percentile, report


async def main(arguments: argparse.Namespace) -> None:
    chance = random.Random(arguments.seed)
    late: list[dict[str, Any]] = []
    alone: list[float] = []
    busy: list[float] = []
    answers: list[float] = []
    steps: list[float] = []
    with Server("--engine", "llama", "--threads", "1", "--slots", "1") as server:
        async with connected(server.url) as wire:
            long = await wire.create()
            short = await wire.create()

            async def first_token(session: str, text: str) -> float:
                started = time.monotonic()
                answer = await wire.command(
                    "message.create", session=session, content=text, max_output_tokens=1, temperature=0.0
                )
                frames = await wire.until_end(answer["response_id"])
                assert frames
                return time.monotonic() - started

            for number in range(arguments.rounds):
                alone.append(await first_token(short, f"Word {number}?"))
                answer = await wire.command(
                    "message.create", session=long, content=f"A long story, number {number}.", max_output_tokens=400
                )
                arrivals: list[float] = []
                while len(arrivals) < chance.randrange(2, 12):
                    frame = await wire.events.get()
                    if frame["event"]["type"] == "response.output_text.delta":
                        arrivals.append(frame["arrived"])
                steps += [b - a for a, b in itertools.pairwise(arrivals)]
                started = time.monotonic()
                done = await wire.command("response.cancel", session=long, response_id=answer["response_id"])
                answers.append(time.monotonic() - started)
                busy.append(await first_token(short, f"Word {number} again?") + answers[-1])
                while not wire.events.empty():
                    frame = wire.events.get_nowait()
                    if frame["session"] == long and frame["offset"] > done["offset"]:
                        late.append(frame)
    alone_p50 = percentile(alone, 0.5)
    freed = [max(0.0, each - alone_p50) * 1000 for each in busy]
    step = percentile(steps, 0.5) * 1000
    report(
        "cancel",
        {
            "rounds": arguments.rounds,
            "cancel answered p50 ms": percentile(answers, 0.5) * 1000,
            "one step ms": step,
            "slot free p50 ms": percentile(freed, 0.5),
            "slot free p99 ms (bar one step + 100)": percentile(freed, 0.99),
            "events after the answer": len(late),
        },
    )
    if late:
        raise SystemExit(1)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=100)
    options.add_argument("--seed", type=int, default=1)
    asyncio.run(main(options.parse_args()))
