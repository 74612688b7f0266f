"""What the session layer costs 8 streams: over WebSocket, against llama-server's own streaming, in pairs.

    python -m bench.overhead_ws --pairs 10

Same model and settings, one engine thread on both sides, same prompts (the chat template applied on both sides),
greedy, 8 streams at once. Peer: llama-server as xllamacpp runs it, `/v1/chat/completions` with `stream`. A pair is the
runs A B B A, so that a machine that grows slower or faster within it favours neither; both servers are up all the time,
one works at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from string import ascii_letters

from bench.peer import LlamaServer
from bench.support import Server, Wire, connected, filler, lower_bound, percentile, report

ANSWER = 64
APART_S = (
    0.1  # between the streams' beginnings: at once, the prompts that the first step has room for decide the median
)


def prompts(streams: int, number: int) -> list[str]:
    """Questions that differ from their first token on, as those of different people do. (llama-server would reuse what
    two of them share; we never reuse what somebody else has said.)"""
    each = range(number * streams, (number + 1) * streams)
    return [f"{ascii_letters[n % len(ascii_letters)]}. {filler(1, n)} {n}: write a long story." for n in each]


async def ours(server: Server, questions: list[str]) -> tuple[float, list[float]]:
    """Tokens per second of all streams together, and each one's time to the first token in ms.

    Connections and sessions stand before the clock starts: they last, which is the point of having them."""
    firsts: list[float] = []
    tokens = 0

    async def one(number: int, wire: Wire, session: str, question: str) -> None:
        nonlocal tokens
        await asyncio.sleep(number * APART_S)
        started = time.monotonic()
        answer = await wire.command(
            "message.create", session=session, content=question, max_output_tokens=ANSWER, temperature=0.0
        )
        frames = await wire.until_end(answer["response_id"])
        first = next(f for f in frames if f["event"]["type"] == "response.output_text.delta")
        firsts.append((first["arrived"] - started) * 1000)
        tokens += frames[-1]["event"]["response"]["usage"]["output_tokens"]

    async with contextlib.AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(connected(server.url)) for _ in questions]
        sessions = [await wire.create() for wire in wires]
        started = time.monotonic()
        await asyncio.gather(*map(one, range(len(wires)), wires, sessions, questions))
        took = time.monotonic() - started
    return tokens / took, firsts


async def theirs(peer: LlamaServer, questions: list[str]) -> tuple[float, list[float]]:
    firsts: list[float] = []
    tokens = 0

    async def one(number: int, question: str) -> None:
        nonlocal tokens
        await asyncio.sleep(number * APART_S)
        started = time.monotonic()
        first, count = await peer.chat([{"role": "user", "content": question}], ANSWER)
        firsts.append((first - started) * 1000)
        tokens += count

    started = time.monotonic()
    await asyncio.gather(*map(one, range(len(questions)), questions))
    return tokens / (time.monotonic() - started), firsts


async def main(arguments: argparse.Namespace) -> None:
    flags = ("--engine", "llama", "--threads", "1", "--slots", str(arguments.streams))
    with Server(*flags) as server, LlamaServer(slots=arguments.streams, threads=1) as peer:
        await ours(server, prompts(arguments.streams, 1000))
        await theirs(peer, prompts(arguments.streams, 1000))
        rates: list[float] = []
        mine: list[float] = []
        their: list[float] = []
        speed: tuple[list[float], list[float]] = ([], [])
        for number in range(arguments.pairs):
            took: dict[str, list[float]] = {"ours": [], "theirs": []}
            for turn, side in enumerate(("ours", "theirs", "theirs", "ours")):
                questions = prompts(arguments.streams, 2 * number + turn // 2)
                run = ours(server, questions) if side == "ours" else theirs(peer, questions)
                rate, firsts = await run
                took[side].append(1 / rate)
                (mine if side == "ours" else their).extend(firsts)
            a, b = (2 / sum(took[side]) for side in ("ours", "theirs"))
            rates.append(a / b)
            speed[0].append(a)
            speed[1].append(b)
    report(
        "overhead_ws",
        {
            "streams": arguments.streams,
            "pairs": arguments.pairs,
            "tokens/s ours (median)": percentile(speed[0], 0.5),
            "tokens/s llama-server (median)": percentile(speed[1], 0.5),
            "ratio, 95% lower bound (bar 0.95)": lower_bound(rates),
            "ratio, mean": sum(rates) / len(rates),
            "TTFT p50 ms ours": percentile(mine, 0.5),
            "TTFT p50 ms llama-server": percentile(their, 0.5),
            "TTFT p50 difference ms (bar 5)": percentile(mine, 0.5) - percentile(their, 0.5),
        },
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pairs", type=int, default=10)
    options.add_argument("--streams", type=int, default=8)
    asyncio.run(main(options.parse_args()))
