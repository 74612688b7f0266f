"""What the session layer costs a turn, engine excluded, at short and at long histories.

    python -m bench.turn_cpu --turns 10
    python -m bench.turn_cpu --door responses

Simulated engine: the server's CPU per 32-token turn in sessions with about 1k, 10k and 100k tokens of history, turns
of all in turns. `--door responses`: each turn brings a tool's output over OpenAI's Responses on a WebSocket, with
`previous_response_id`. Bar: the longest within 1.2 × the shortest.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from statistics import median
from typing import Any
from urllib.request import urlopen

import psutil
from websockets.asyncio.client import ClientConnection, connect

from bench.support import Option, filler, report, run_bench
from testbed.server_process import ServerProcess
from testbed.wire_client import WireClient, connected

MESSAGE_TOKENS = 100
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}

Turns = Callable[[int], Awaitable[None]]


async def session_turns(wire: WireClient, tokens: int) -> Turns:
    """A session with a history of about so many tokens, in messages of about 100; and what writes turns in it."""
    session = await wire.create()
    for number in range(tokens // MESSAGE_TOKENS):
        await wire.command("message.create", session=session, content=filler(MESSAGE_TOKENS, number), respond=False)

    async def turns(count: int) -> None:
        for number in range(count):
            answer = await wire.command(
                "message.create", session=session, content=f"Question {number}?", max_output_tokens=32
            )
            await wire.until_end(answer["response_id"])

    return turns


async def response_turns(socket: ClientConnection, model: str, tokens: int) -> Turns:
    """The same as responses, each behind the one before it."""
    last: dict[str, Any] = {}
    always = {"model": model, "instructions": "Look well.", "tools": [TOOL], "tool_choice": "none"}

    async def respond(items: list[Any], output_max: int) -> None:
        body = {"type": "response.create", **always, **last, "input": items, "max_output_tokens": output_max}
        await socket.send(json.dumps(body))
        while True:
            event = json.loads(await socket.recv())
            if event["type"] in ("response.completed", "response.incomplete"):
                break
            if event["type"] in ("response.failed", "error"):
                raise RuntimeError(json.dumps(event)[:2000])
        last["previous_response_id"] = event["response"]["id"]

    def message(content: str) -> Any:
        return {"role": "user", "content": content}

    for first in range(0, tokens // MESSAGE_TOKENS, 100):
        count = min(100, tokens // MESSAGE_TOKENS - first)
        await respond([message(filler(MESSAGE_TOKENS, first + number)) for number in range(count)], 16)

    async def turns(count: int) -> None:
        for number in range(count):
            await respond([message(f"Question {number}?")], 32)

    return turns


def served_model(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/v1/models") as answer:
        return str(json.load(answer)["data"][0]["id"])


async def main(given: argparse.Namespace) -> bool:
    flags = ("--engine", "sim", "--sim-tokens-per-s", "200", "--sim-prefill-per-s", "1e9", "--sim-answer-tokens", "0")
    cost: dict[int, list[float]] = {length: [] for length in given.lengths}
    context = 2 * max(given.lengths) + 32_768
    with ServerProcess(*flags, "--context", str(context)) as server:
        process = psutil.Process(server.pid)
        model = served_model(server.port)
        async with AsyncExitStack() as stack:
            wire = await stack.enter_async_context(connected(server.url))
            turns: dict[int, Turns] = {}
            for length in given.lengths:
                if given.door == "session":
                    turns[length] = await session_turns(wire, length)
                else:
                    url = f"ws://127.0.0.1:{server.port}/v1/responses"
                    socket = await stack.enter_async_context(connect(url, max_size=None, ping_interval=None))
                    turns[length] = await response_turns(socket, model, length)
                await turns[length](2)
            for _ in range(given.rounds):
                for length, some in turns.items():
                    before = sum(process.cpu_times()[:2])
                    await some(given.turns)
                    cost[length].append((sum(process.cpu_times()[:2]) - before) / given.turns * 1000)
    figures = {f"CPU ms per turn at {length // 1000}k": median(cost[length]) for length in given.lengths}
    ratio = median(cost[given.lengths[-1]]) / median(cost[given.lengths[0]])
    report("turn_cpu", {**figures, "ratio (bar 1.2)": ratio, "turns": given.turns * given.rounds, "door": given.door})
    return ratio <= 1.2


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        turns=10,
        rounds=10,
        lengths=Option([1_000, 10_000, 100_000], "tokens of history"),
        door=Option("session", "what turns come by", ("session", "responses")),
    )
