"""What the session layer costs 8 streams: over WebSocket, against llama-server's own streaming, in pairs.

    python -m bench.overhead_ws --pairs 10

Same model and settings, one engine thread on both sides, same prompts (the chat template applied on both sides),
greedy, 8 streams that begin 0.1 s apart. Peer: llama-server as xllamacpp runs it, `/v1/chat/completions` with
`stream`. Pairs are those of `bench.pairs`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from functools import partial

from bench.pairs import compared, speed
from bench.peer import LlamaServerProcess
from bench.support import report, run_bench
from tests.support.doors.server_process import ServerProcess
from tests.support.doors.wire_client import WireClient, connected

ANSWER = 64
APART_S = 0.1  # between the streams' beginnings: at once, the first step's room would decide the median


async def ours(server: ServerProcess, questions: list[str]) -> tuple[float, list[float]]:
    """Tokens per second of all streams together, and each one's time to the first token in ms.

    Connections and sessions stand before the clock starts: they last, which is the point of having them."""

    async def one(number: int, wire: WireClient, session: str, question: str) -> tuple[int, float]:
        await asyncio.sleep(number * APART_S)
        started = time.monotonic()
        answer = await wire.command(
            "message.create", session=session, content=question, max_output_tokens=ANSWER, temperature=0.0
        )
        frames = await wire.until_end(answer["response_id"])
        first = next(f for f in frames if f["event"]["type"] == "response.output_text.delta")
        tokens = frames[-1]["event"]["response"]["usage"]["output_tokens"]
        return tokens, (first["arrived"] - started) * 1000

    async with contextlib.AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(connected(server.url)) for _ in questions]
        sessions = [await wire.create() for wire in wires]
        started = time.monotonic()
        answers = await asyncio.gather(*map(one, range(len(wires)), wires, sessions, questions))
        took = time.monotonic() - started
    return speed(answers, took)


async def theirs(peer: LlamaServerProcess, questions: list[str]) -> tuple[float, list[float]]:
    async def one(number: int, question: str) -> tuple[int, float]:
        await asyncio.sleep(number * APART_S)
        started = time.monotonic()
        first, count = await peer.chat([{"role": "user", "content": question}], ANSWER)
        return count, (first - started) * 1000

    started = time.monotonic()
    answers = await asyncio.gather(*map(one, range(len(questions)), questions))
    return speed(answers, time.monotonic() - started)


async def main(arguments: argparse.Namespace) -> None:
    streams = arguments.streams
    flags = ("--engine", "llama", "--threads", "1", "--slots", str(streams))
    with ServerProcess(*flags) as server, LlamaServerProcess(slots=streams, threads=1) as peer:
        figures = await compared(arguments.pairs, streams, partial(ours, server), partial(theirs, peer), later_ms=5)
    report("overhead_ws", figures)


if __name__ == "__main__":
    run_bench(main, __doc__, pairs=10, streams=8)
