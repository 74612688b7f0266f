"""Agents' loops of tool calls: Responses over one WebSocket each, against HTTP with the whole history each time.

    python -m bench.openai.responses_websocket --calls 20 --agents 4 --slots 2

Same model, one engine thread, greedy, answers held to the same schema, outputs of the same words. Three ways, one after
the other: our socket (`previous_response_id` and the output), our `POST /v1/responses` with `store: false` and all that
went before, and llama-server with all that went before, which is what an agent without us has on this engine. Each
agent has instructions of its own, so what one computes serves no other. With more agents than slots the engine's own
server forgets between two calls of one agent. Bar: the socket takes at most 0.6 of llama-server's time. Exits with 1
where not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.request import urlopen

from websockets.asyncio.client import connect

from bench.peer import LlamaServerProcess, posted
from bench.support import Option, report, run_bench
from tests.support.doors.server_process import ServerProcess

SCHEMA: Any = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
TOOL: Any = {"type": "function", "name": "look", "description": "Looks at a place.", "parameters": SCHEMA}
FORCED: Any = {"type": "function", "name": "look"}
OUTPUT_TOKENS = 32
WAYS = ("socket", "http", "llama-server")

Loop = Callable[[int], Awaitable[int]]


def instructions(agent: int, words: int) -> str:
    return f"You are agent {agent}. " + " ".join(f"Rule {agent}-{rule}: look well." for rule in range(words // 5))


def output(agent: int, call: int, words: int) -> str:
    return f"Place {call} of agent {agent}: " + " ".join(f"thing{(call * 7 + at) % 97}" for at in range(words))


class Loops:
    """The loop of one agent, in each way. Returns how many prompt tokens were computed."""

    def __init__(self, given: argparse.Namespace, port: int, peer: LlamaServerProcess) -> None:
        self.given, self.port, self.peer = given, port, peer
        with urlopen(f"http://127.0.0.1:{port}/v1/models") as answer:
            self.model = json.load(answer)["data"][0]["id"]

    def _body(self, agent: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "instructions": instructions(agent, self.given.instruction_words),
            "tools": [TOOL],
            "tool_choice": FORCED,
            "temperature": 0,
            "max_output_tokens": OUTPUT_TOKENS,
        }

    async def socket(self, agent: int) -> int:
        body, computed = self._body(agent), 0
        async with connect(f"ws://127.0.0.1:{self.port}/v1/responses", max_size=None) as socket:
            turn: dict[str, Any] = {"input": "Look around."}
            for call in range(self.given.calls):
                await socket.send(json.dumps({"type": "response.create", "store": False, **body, **turn}))
                ended: Any = {"type": ""}
                while ended["type"] not in ("response.completed", "response.incomplete", "response.failed", "error"):
                    ended = json.loads(await socket.recv())
                made = _completed(ended)
                computed += _computed(made["usage"])
                result = output(agent, call, self.given.output_words)
                item = {"type": "function_call_output", "call_id": _call(made)["call_id"], "output": result}
                turn = {"input": [item], "previous_response_id": made["id"]}
        return computed

    async def http(self, agent: int) -> int:
        body, computed = self._body(agent), 0
        history: list[Any] = [{"role": "user", "content": "Look around."}]
        for call in range(self.given.calls):
            request = {**body, "store": False, "input": history, "stream": True}
            reader, writer, head = await posted("127.0.0.1", self.port, "/v1/responses", request)
            if b" 200 " not in head.split(b"\r\n", 1)[0]:
                raise RuntimeError(head.decode() + (await reader.read()).decode())
            ended: Any = {"type": ""}
            async for line in reader:
                if line.startswith(b"data: {"):
                    ended = json.loads(line[6:])
            writer.close()
            made = _completed(ended)
            computed += _computed(made["usage"])
            called = _call(made)
            result = output(agent, call, self.given.output_words)
            history += [
                {name: called[name] for name in ("type", "call_id", "name", "arguments")},
                {"type": "function_call_output", "call_id": called["call_id"], "output": result},
            ]
        return computed

    async def engine(self, agent: int) -> int:
        computed = 0
        rules = f"{instructions(agent, self.given.instruction_words)} Tools: {json.dumps(TOOL)}"
        history: list[Any] = [{"role": "system", "content": rules}, {"role": "user", "content": "Look around."}]
        for call in range(self.given.calls):
            request = {
                "messages": history,
                "stream": True,
                "max_tokens": OUTPUT_TOKENS,
                "temperature": 0.0,
                "response_format": {"type": "json_schema", "json_schema": {"name": "look", "schema": SCHEMA}},
            }
            text = ""
            async for event in self.peer.stream("/v1/chat/completions", request):
                text += (event["choices"][0]["delta"].get("content") or "") if event.get("choices") else ""
                computed += int((event.get("timings") or {}).get("prompt_n", 0))
            history += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": output(agent, call, self.given.output_words)},
            ]
        return computed


def _completed(event: Any) -> Any:
    if event["type"] != "response.completed":
        raise RuntimeError(json.dumps(event)[:2000])
    return event["response"]


def _call(response: Any) -> Any:
    return next(item for item in response["output"] if item["type"] == "function_call")


def _computed(usage: Any) -> int:
    return int(usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"])


async def timed(loop: Loop, agents: int, first: int) -> tuple[float, int]:
    """Seconds of all loops together, and the prompt tokens that were computed."""
    started = time.monotonic()
    computed = await asyncio.gather(*(loop(first + agent) for agent in range(agents)))
    return time.monotonic() - started, sum(computed)


async def main(given: argparse.Namespace) -> bool:
    flags = ("--engine", "llama", "--threads", "1", "--slots", str(given.slots))
    figures: dict[str, Any] = {"agents": given.agents, "slots": given.slots, "calls of each": given.calls}
    seconds: dict[str, list[float]] = {way: [] for way in given.ways}
    tokens = dict.fromkeys(seconds, 0)
    with ServerProcess(*flags) as server, LlamaServerProcess(slots=given.slots, threads=1) as peer:
        loops = Loops(given, server.port, peer)
        ways: dict[str, Loop] = {"socket": loops.socket, "http": loops.http, "llama-server": loops.engine}
        for round_ in range(given.rounds):
            for at, name in enumerate(seconds):
                taken, computed = await timed(ways[name], given.agents, (round_ * len(ways) + at) * given.agents)
                print(f"{name}: {taken:.1f} s, {computed} prompt tokens computed", file=sys.stderr, flush=True)
                seconds[name].append(taken)
                tokens[name] += computed
    for name, rounds in seconds.items():
        figures[f"{name}: seconds"] = [round(each, 2) for each in rounds]
        figures[f"{name}: prompt tokens computed"] = tokens[name]
    shares = {way: sum(seconds["socket"]) / sum(others) for way, others in seconds.items() if way != "socket"}
    for way, share in shares.items():
        figures[f"socket, of {way}'s time" + " (bar 0.6)" * (way == "llama-server")] = share
    report("responses_websocket", figures)
    if "llama-server" not in shares:
        print("The bar is against llama-server, which was not timed.", file=sys.stderr)
    return shares.get("llama-server", math.inf) <= 0.6


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        calls=20,
        agents=4,
        slots=2,
        rounds=1,
        instruction_words=300,
        output_words=60,
        ways=Option([*WAYS], "what is timed, the socket among them", WAYS),
    )
