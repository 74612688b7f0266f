"""What the session layer costs a turn, engine excluded, at a short and at a long history.

    python -m bench.turn_cpu --turns 200

Simulated engine whose own work is counted out: the server's CPU per 32-token turn in a session with about 1k
tokens of history and in one with about 7k, turns of both alternating, against the same measure of the engine alone
(`--engine-only` rows: the same prompts run without a session). Bar: the two within 1.2 ×.
"""

from __future__ import annotations

import argparse

import psutil

from bench.support import filler, report, run_bench
from tests.support.doors.server_process import ServerProcess
from tests.support.doors.wire_client import WireClient, connected


async def grow(wire: WireClient, session: str, tokens: int) -> None:
    """Fills a session with a history of about `tokens` tokens in messages of about 100."""
    for number in range(tokens // 100):
        await wire.command("message.create", session=session, content=filler(100, number), respond=False)


async def turns(wire: WireClient, session: str, count: int) -> None:
    for number in range(count):
        answer = await wire.command(
            "message.create", session=session, content=f"Question {number}?", max_output_tokens=32
        )
        await wire.until_end(answer["response_id"])


async def main(arguments: argparse.Namespace) -> None:
    flags = ("--engine", "sim", "--sim-tokens-per-s", "200", "--sim-prefill-per-s", "1e9", "--sim-answer-tokens", "0")
    cost: dict[str, list[float]] = {"short": [], "long": []}
    with ServerProcess(*flags, "--context", "65536") as server:
        process = psutil.Process(server.pid)
        async with connected(server.url) as wire:
            sessions = {"short": await wire.create(), "long": await wire.create()}
            await grow(wire, sessions["short"], 1_000)
            await grow(wire, sessions["long"], 7_000)
            for name in sessions:
                await turns(wire, sessions[name], 2)
            for _ in range(arguments.rounds):
                for name, session in sessions.items():
                    before = sum(process.cpu_times()[:2])
                    await turns(wire, session, arguments.turns)
                    cost[name].append((sum(process.cpu_times()[:2]) - before) / arguments.turns * 1000)
    short, long = sorted(cost["short"])[len(cost["short"]) // 2], sorted(cost["long"])[len(cost["long"]) // 2]
    report(
        "turn_cpu",
        {
            "CPU ms per turn at 1k": short,
            "CPU ms per turn at 7k": long,
            "ratio (bar 1.2)": long / short,
            "turns": arguments.turns * arguments.rounds,
        },
    )


if __name__ == "__main__":
    run_bench(main, __doc__, turns=10, rounds=10)
