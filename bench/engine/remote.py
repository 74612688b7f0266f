"""`--engine remote` in front of vLLM's own servers: what the session layer costs, what a death costs, what is reused.

    .venv-vllm/bin/python -m bench.engine.remote --pairs 10 --kills 10 --turns 10

*Overhead*: tokens a second of eight streams through Sessile and from vLLM's own `/v1/chat/completions`, the same
questions, in pairs of `bench.pairs`. *Deaths*: of two servers of vLLM the one that writes the answer is killed; the
silence until the next text, and whether the whole text is the one of an answer that nobody disturbed (float32). A
killed server is started again for the next round. *Turns*: a conversation; the share of reusable tokens that vLLM
reused.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

import httpx
import psutil

from bench.engine.vllm_support import MODEL, peer
from bench.openai_overhead import ours, streamed
from bench.pairs import compared
from bench.support import filler, report, run_bench, spread
from testbed.server_process import ServerProcess

WINDOW: Final = 2048
BLOCKS: Final = 1024
NEXT_MAX_S: Final = 1.0


@contextlib.asynccontextmanager
async def remote(*peers: httpx.AsyncClient) -> AsyncIterator[tuple[ServerProcess, str]]:
    """Runs Sessile in front of vLLM's servers; yields it with the name of its model."""
    urls = ",".join(str(each.base_url).rstrip("/") for each in peers)
    server = ServerProcess("--engine", "remote", "--engine-url", urls, "--model", str(MODEL), "--slots", "8")
    await asyncio.to_thread(server.start)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
            model = (await http.get("/v1/models")).json()["data"][0]["id"]
        yield server, str(model)
    finally:
        await asyncio.to_thread(server.stop)


async def overhead(pairs: int, streams: int) -> dict[str, float]:
    async with peer(BLOCKS, streams, WINDOW) as theirs, remote(theirs) as (server, model):
        sides = partial(ours, server.port, model), partial(ours, theirs.base_url.port or 80, "m")
        figures = await compared(pairs, streams, *sides, later_ms=8)
    return {
        name.replace("llama-server", "vLLM").replace("bar 0.95", "bar 0.98"): each for name, each in figures.items()
    }


async def turns(count: int) -> dict[str, float]:
    """Returns the share of reusable tokens (the prompt before and its answer) that vLLM reused, by whole blocks."""
    reusable = reused = 0
    async with peer(BLOCKS, 2, WINDOW) as theirs, remote(theirs) as (server, model):
        url = f"http://127.0.0.1:{server.port}/v1"
        async with httpx.AsyncClient(base_url=url, timeout=300) as http:
            before, previous = 0, None
            for number in range(count):
                question = f"{filler(60, number)} Go on."
                body = {"model": model, "input": question, "max_output_tokens": 48, "temperature": 0}
                answer = (await http.post("/responses", json={**body, "previous_response_id": previous})).json()
                usage, previous = answer["usage"], answer["id"]
                reusable += before // 32 * 32
                reused += min(before // 32 * 32, usage["input_tokens_details"]["cached_tokens"])
                before = usage["input_tokens"] + usage["output_tokens"] - 1  # of the last one there is no KV yet
    return {"turns": count, "reused of reusable tokens (bar 0.99)": reused / reusable}


async def deaths(kills: int) -> dict[str, Any]:
    """Kills the server that writes, in the middle of answers."""
    silences, changed = list[float](), 0
    async with contextlib.AsyncExitStack() as stack:
        make = partial(peer, BLOCKS, 8, WINDOW, dtype="float32")
        peers = [await stack.enter_async_context(make()) for _ in range(2)]
        for number in range(kills):
            question = f"{filler(100, number)} Write a long story about a river."
            async with remote(*peers) as (server, model):
                expected = "".join([text async for text in texts(server.port, model, question)])
                written, last_at, longest, dead = "", 0.0, 0.0, None
                async for text in texts(server.port, model, question + " "):
                    written += text
                    if dead is not None:  # what came before the death may still be on its way
                        longest = max(longest, time.monotonic() - last_at)
                    elif len(written) > len(expected) // 3:
                        dead = await writer(peers)
                        server_process = process_at(dead)
                        for process in (server_process, *server_process.children(recursive=True)):
                            process.kill()
                    last_at = time.monotonic()
                silences.append(longest)
                undisturbed = "".join([text async for text in texts(server.port, model, question + " ")])
                changed += written != undisturbed
            assert dead is not None
            peers[peers.index(dead)] = await stack.enter_async_context(make())
    return {
        **spread("silence {} s (bar 1 beyond the prefill)", silences, "p50 max"),
        "answers changed": changed,
    }


async def texts(port: int, model: str, question: str) -> AsyncIterator[str]:
    async for event in streamed(port, model, question):
        if event["choices"] and (text := event["choices"][0]["delta"].get("content")):
            yield text


async def writer(peers: list[httpx.AsyncClient]) -> httpx.AsyncClient:
    """Returns the server that an answer runs on: the one that computes."""
    before = [process_at(each).cpu_times().user for each in peers]
    await asyncio.sleep(0.3)
    return max(peers, key=lambda each: process_at(each).cpu_times().user - before[peers.index(each)])


def process_at(server: httpx.AsyncClient) -> psutil.Process:
    port = str(server.base_url.port)
    running = (each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE)
    return next(each for each in running if port in each.cmdline())


async def main(options: argparse.Namespace) -> bool:
    figures: dict[str, Any] = {}
    if options.pairs:
        figures |= await overhead(options.pairs, options.streams)
    if options.turns:
        figures |= await turns(options.turns)
    if options.kills:
        figures |= await deaths(options.kills)
    report("remote", figures)
    return (
        figures.get("ratio, mean", 1.0) >= 0.98
        and figures.get("reused of reusable tokens (bar 0.99)", 1.0) >= 0.99
        and not figures.get("answers changed", 0)
        and figures.get("silence max s (bar 1 beyond the prefill)", 0.0) <= NEXT_MAX_S
    )


if __name__ == "__main__":
    run_bench(main, __doc__, pairs=10, streams=8, kills=10, turns=10)
