"""What our side of llama.cpp costs: eight streams through the engine port against llama-server's own streaming.

    python -m bench.engine.overhead --pairs 10

One server, one engine thread, the same prompts and lengths; the peer is a bare HTTP client that reads the same
/completion stream and decodes nothing. Pairs are interleaved; tokens/s of our side over the peer's, and the first
token's delay on an idle engine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from bench.peer import MODEL
from bench.support import lower_bound, report, run_bench
from inference.llama import LlamaEngine, LlamaOptions
from sessions.model.generation import Chunk
from sessions.model.types import Tokens
from tests.support.engines.engines import key, prompt_of, request
from tests.support.percentiles import percentile

Side = Callable[[int, Tokens, int], Awaitable[float]]  # seconds to the first token: number, prompt, tokens


async def through_engine(engine: LlamaEngine, number: int, prompt: Tokens, tokens: int) -> float:
    """Seconds to the first token."""
    started, first, seen = time.perf_counter(), 0.0, 0
    async for item in engine.generate(request(key(f"s{number}"), prompt, max_tokens=tokens)):
        if isinstance(item, Chunk):
            first = first or time.perf_counter() - started
            seen += len(item.tokens)
    assert seen == tokens, f"the answer ended after {seen} tokens"
    return first


async def straight(socket_path: str, slot: int, prompt: Tokens, tokens: int) -> float:
    body = msgspec.json.encode(
        {
            "prompt": list(prompt),
            "id_slot": slot,
            "cache_prompt": True,
            "stream": True,
            "n_predict": tokens,
            "temperature": 0,
            "return_tokens": True,
        }
    )
    started, first = time.perf_counter(), 0.0
    reader, writer = await asyncio.open_unix_connection(socket_path)
    writer.write(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
    writer.write(b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    while data := await reader.read(1 << 16):
        if not first and b"data: " in data:
            first = time.perf_counter() - started
    writer.close()
    return first


async def main(arguments: argparse.Namespace) -> None:
    engine = LlamaEngine(
        LlamaOptions(model_path=MODEL, slots=arguments.streams, context_window=1024, threads=1, disk_folder=None)
    )
    await engine.start()
    opening = await engine.tokenizer.opening(None, ())
    prompts = [
        await prompt_of(engine, f"Tell me a very long story about the sea, chapter {number}.", before=opening)
        for number in range(arguments.streams)
    ]
    ours, theirs = partial(through_engine, engine), partial(straight, engine.socket_path)

    async def run(side: Side, count: int, tokens: int) -> tuple[float, list[float]]:
        started = time.perf_counter()
        firsts = await asyncio.gather(*(side(n, prompts[n], tokens) for n in range(count)))
        return count * tokens / (time.perf_counter() - started), firsts

    await run(ours, arguments.streams, 8)  # every prompt is resident from here on, for both sides
    ratios, rates, first_ours, first_theirs = [], [], [], []
    for pair in range(arguments.pairs):
        sides: tuple[Side, ...] = (ours, theirs) if pair % 2 else (theirs, ours)
        results = {side: (await run(side, arguments.streams, arguments.tokens))[0] for side in sides}
        ratios.append(results[ours] / results[theirs])
        rates.append(results[ours])
        for _ in range(10):
            first_ours += (await run(ours, 1, 1))[1]
            first_theirs += (await run(theirs, 1, 1))[1]
    await engine.close()
    report(
        "engine_overhead",
        {
            "streams": arguments.streams,
            "tokens_per_s_p50": percentile(rates, 0.5),
            "ratio_mean": sum(ratios) / len(ratios),
            "ratio_lower_bound_95": lower_bound(ratios),
            "bar_ratio": 0.95,
            "ttft_ms_p50": 1000 * percentile(first_ours, 0.5),
            "peer_ttft_ms_p50": 1000 * percentile(first_theirs, 0.5),
            "ttft_added_ms_p50": 1000 * (percentile(first_ours, 0.5) - percentile(first_theirs, 0.5)),
            "bar_ttft_added_ms": 5.0,
        },
    )


if __name__ == "__main__":
    run_bench(main, __doc__, streams=8, tokens=64, pairs=10)
