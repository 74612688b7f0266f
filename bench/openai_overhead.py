"""Compares 8 streams through the session layer, by OpenAI's door or over WebSocket, with llama-server itself, in pairs.

    python -m bench.openai_overhead --pairs 10
    python -m bench.openai_overhead --pairs 10 --door websocket

Same model, settings and prompts (the chat template applied on both sides), one engine thread on both sides, greedy,
streams that begin 0.1 s apart. The peer is llama-server as xllamacpp runs it, `/v1/chat/completions` with `stream`;
one plain HTTP client speaks to it and to OpenAI's door. Pairs are those of `bench.pairs`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from functools import partial
from typing import Any

import msgspec

from bench.pairs import compared, speed
from bench.peer import LlamaServerProcess, posted
from bench.support import Option, report, run_bench
from testbed.server_process import ServerProcess
from testbed.wire_client import WireClient, connected

ANSWER = 64
APART_S = 0.1  # between the streams' beginnings: at once, the first step's room would decide the median


async def ours(port: int, model: str, questions: list[str]) -> tuple[float, list[float]]:
    """Tokens per second of all streams together, and each one's time to the first text in ms."""

    async def one(number: int, question: str) -> tuple[int, float]:
        await asyncio.sleep(number * APART_S)
        started = time.monotonic()
        first, tokens = 0.0, 0
        async for event in streamed(port, model, question):
            if not first and event["choices"] and event["choices"][0]["delta"].get("content"):
                first = time.monotonic()
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
        return tokens, (first - started) * 1000

    started = time.monotonic()
    answers = await asyncio.gather(*map(one, range(len(questions)), questions))
    return speed(answers, time.monotonic() - started)


async def streamed(port: int, model: str, question: str) -> Any:
    """The chunks of one answer, read as `bench.peer` reads llama-server's."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": ANSWER,
        "temperature": 0.0,
    }
    reader, writer, head = await posted("127.0.0.1", port, "/v1/chat/completions", body)
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise RuntimeError(head.decode() + (await reader.read()).decode())
    async for line in reader:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            yield msgspec.json.decode(line[6:])
    writer.close()


async def ours_over_websocket(server: ServerProcess, questions: list[str]) -> tuple[float, list[float]]:
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
    streams, model = arguments.streams, arguments.model
    flags = ("--engine", "llama", "--threads", "1", "--slots", str(streams))
    over_websocket = arguments.door == "websocket"
    with ServerProcess(*flags) as server, LlamaServerProcess(slots=streams, threads=1) as peer:
        mine = partial(ours_over_websocket, server) if over_websocket else partial(ours, server.port, model)
        later_ms = 5 if over_websocket else 8
        figures = await compared(arguments.pairs, streams, mine, partial(theirs, peer), later_ms=later_ms)
    report("openai_overhead", {"door": arguments.door, **figures})


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        pairs=10,
        streams=8,
        door=Option("openai", "the one that is measured", ("openai", "websocket")),
        model="SmolLM2-135M-Instruct.Q4_1",
    )
