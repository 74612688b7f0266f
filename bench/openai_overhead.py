"""What the session layer costs OpenAI's own clients: `/v1/chat/completions` streamed, against llama-server's, in pairs.

    python -m bench.openai_overhead --pairs 10

Same model, settings and requests, one engine thread on both sides, greedy, 8 streams that begin 0.1 s apart, one plain
HTTP client for both. Pairs are interleaved A B B A; both servers are up all the time, one works at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

import msgspec

from bench.overhead_ws import ANSWER, APART_S, prompts, theirs
from bench.peer import LlamaServer
from bench.support import Server, lower_bound, percentile, report


async def ours(port: int, model: str, questions: list[str]) -> tuple[float, list[float]]:
    """Tokens per second of all streams together, and each one's time to the first text in ms."""
    firsts: list[float] = []
    tokens = 0

    async def one(number: int, question: str) -> None:
        nonlocal tokens
        await asyncio.sleep(number * APART_S)
        started = time.monotonic()
        first = 0.0
        async for event in streamed(port, model, question):
            if not first and event["choices"] and event["choices"][0]["delta"].get("content"):
                first = time.monotonic()
            if event.get("usage"):
                tokens += event["usage"]["completion_tokens"]
        firsts.append((first - started) * 1000)

    started = time.monotonic()
    await asyncio.gather(*map(one, range(len(questions)), questions))
    return tokens / (time.monotonic() - started), firsts


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
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    data = msgspec.json.encode(body)
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
        + data
    )
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise RuntimeError(head.decode() + (await reader.read()).decode())
    async for line in reader:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            yield msgspec.json.decode(line[6:])
    writer.close()


async def main(arguments: argparse.Namespace) -> None:
    flags = ("--engine", "llama", "--threads", "1", "--slots", str(arguments.streams))
    with Server(*flags) as server, LlamaServer(slots=arguments.streams, threads=1) as peer:
        model = arguments.model
        await ours(server.port, model, prompts(arguments.streams, 1000))
        await theirs(peer, prompts(arguments.streams, 1000))
        rates: list[float] = []
        speed: tuple[list[float], list[float]] = ([], [])
        waits: tuple[list[float], list[float]] = ([], [])
        for number in range(arguments.pairs):
            questions = prompts(arguments.streams, number)
            if number % 2:
                b, b_first = await theirs(peer, questions)
                a, a_first = await ours(server.port, model, questions)
            else:
                a, a_first = await ours(server.port, model, questions)
                b, b_first = await theirs(peer, questions)
            rates.append(a / b)
            for side, rate, firsts in ((0, a, a_first), (1, b, b_first)):
                speed[side].append(rate)
                waits[side].extend(firsts)
    report(
        "openai_overhead",
        {
            "streams": arguments.streams,
            "pairs": arguments.pairs,
            "tokens/s ours (median)": percentile(speed[0], 0.5),
            "tokens/s llama-server (median)": percentile(speed[1], 0.5),
            "ratio, 95% lower bound (bar 0.95)": lower_bound(rates),
            "ratio, mean": sum(rates) / len(rates),
            "TTFT p50 ms ours": percentile(waits[0], 0.5),
            "TTFT p50 ms llama-server": percentile(waits[1], 0.5),
            "TTFT p50 difference ms (bar 8)": percentile(waits[0], 0.5) - percentile(waits[1], 0.5),
        },
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pairs", type=int, default=10)
    options.add_argument("--streams", type=int, default=8)
    options.add_argument("--model", default="SmolLM2-135M-Instruct.Q4_1")
    asyncio.run(main(options.parse_args()))
