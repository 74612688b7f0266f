"""How soon a slot is free after an abort, as llama-server itself reports it.

    python -m bench.engine.abort --rounds 100

Each round aborts a run at a random moment, half of them while the prompt is being computed, beside one other stream,
and then asks the server's /slots until the slot is idle. Bar: one step + 100 ms at p99. A step in which a prompt is
computed takes a batch of `batch_tokens`; its length is measured in the same run. /slots answers between steps too, so
the figures are upper bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import time

import msgspec

from bench.support import command_line, report
from inference.http_client import HttpClient
from inference.llama import LlamaEngine, LlamaOptions
from sessions.model.generation import Chunk, GenerationRequest
from sessions.model.types import ResponseId, Sampling, SessionId, SessionKey, TenantId
from sessions.ports import ChatMessage
from tests.support.doors.server_process import ROOT
from tests.support.percentiles import percentile

MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


class _Slot(msgspec.Struct):
    id: int
    is_processing: bool


def request(name: str, prompt: tuple[int, ...], tokens: int) -> GenerationRequest:
    return GenerationRequest(
        key=SessionKey(TenantId("bench"), SessionId(name)),
        response_id=ResponseId("r"),
        generation=1,
        prompt=prompt,
        sampling=Sampling(temperature=0),
        seed=1,
        max_tokens=tokens,
    )


async def busy(http: HttpClient) -> int:
    _, body = await http.call("GET", "/slots")
    return sum(slot.is_processing for slot in msgspec.json.decode(body, type=list[_Slot]))


async def main(arguments: argparse.Namespace) -> None:
    chance = random.Random(arguments.seed)
    engine = LlamaEngine(LlamaOptions(model_path=MODEL, slots=2, context_window=2048, threads=1))
    await engine.start()
    http = HttpClient.unix(engine.socket_path)
    tokenizer = engine.tokenizer
    message = await tokenizer.message(ChatMessage(role="user", text="Tell me a very long story about the sea."))
    short = (*await tokenizer.opening(None, ()), *message, *tokenizer.answer_opening)
    words = tuple(await tokenizer.text(" ".join(f"word {n}" for n in range(1500))))
    latencies: dict[str, list[float]] = {"decode": [], "prefill": []}
    gaps: list[float] = []
    for number in range(arguments.rounds):
        kind = ("decode", "prefill")[number % 2]
        other = engine.generate(request("other", short, 800))
        await anext(other)
        watched: list[float] = []

        async def watch(stream: object = other, seen: list[float] = watched) -> None:
            async for item in stream:  # type: ignore[attr-defined]
                if isinstance(item, Chunk):
                    seen.append(time.perf_counter())

        watching = asyncio.create_task(watch())
        if kind == "decode":
            stream = engine.generate(request("aborted", short, 800))
            for _ in range(chance.randrange(1, 8)):
                await anext(stream)
            started = time.perf_counter()
            await stream.aclose()  # type: ignore[attr-defined]
        else:
            start = chance.randrange(100)

            async def read(prompt: tuple[int, ...] = words[start : start + 1500]) -> None:
                async for _ in engine.generate(request("aborted", prompt, 1)):
                    continue

            reading = asyncio.create_task(read())
            await asyncio.sleep(0.2 + chance.random())
            started = time.perf_counter()
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
        while await busy(http) > 1:  # each answer takes a step, so this is no busy loop
            continue
        latencies[kind].append(time.perf_counter() - started)
        if kind == "prefill":  # the other stream gets a token a step: its longest gap is the longest step
            gaps.append(max((b - a for a, b in itertools.pairwise(watched)), default=0.0))
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        await other.aclose()  # type: ignore[attr-defined]
        await engine.release(SessionKey(TenantId("bench"), SessionId("aborted")))
    await engine.close()
    report(
        "engine_abort",
        {
            "rounds": arguments.rounds,
            "decode_ms_p50": 1000 * percentile(latencies["decode"], 0.5),
            "decode_ms_p99": 1000 * percentile(latencies["decode"], 0.99),
            "prefill_ms_p50": 1000 * percentile(latencies["prefill"], 0.5),
            "prefill_ms_p99": 1000 * percentile(latencies["prefill"], 0.99),
            "prefill_step_ms_p50": 1000 * percentile(gaps, 0.5),
            "prefill_step_ms_p99": 1000 * percentile(gaps, 0.99),
            "bar": "one step + 100 ms at p99",
        },
    )


if __name__ == "__main__":
    asyncio.run(main(command_line(__doc__, rounds=100, seed=1)))
