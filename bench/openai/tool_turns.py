"""Agents that call tools for 35 turns, through the door of the whole server against vLLM's own server.

    .venv-vllm/bin/python -m bench.openai.tool_turns --agents 5

Each agent has instructions of its own, a tool that it must call in every turn, and results that take a while (a
log-normal time around `--tool-s`, the same for both) and have `--output-words` words. Ours: Responses over one
WebSocket each, `previous_response_id` and the output. vLLM's own server: chat completions with the whole history, the
answer held to the call that ours writes, name and arguments, as a model that chooses its tools does. Same model,
bfloat16, one engine thread, two at a time, blocks for a quarter of all tokens at the end on both. A turn is from the
result's being sent to the call's last byte. `--stages` prints what each of our turns had of its prompt and how long its
first word and its last took. One server works at a time, in turns which first. Where a side is stopped
by `--seconds-max`, only turns that both have made are compared. Bar: the median turn 4.2 times faster. Exits with 1
where not, or where a call is not valid.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import time
from typing import Any, Final, NamedTuple

import httpx
from tokenizers import Tokenizer
from websockets.asyncio.client import connect

from bench.engine.vllm_support import BLOCK, MODEL, peer
from bench.support import Option, report, run_bench, spread
from tests.support.doors.server_process import ServerProcess

SCHEMA: Any = {
    "type": "object",
    "properties": {"at": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["at"],
    "additionalProperties": False,
}
CALL: Any = {
    "type": "object",
    "properties": {"name": {"const": "look"}, "arguments": SCHEMA},
    "required": ["name", "arguments"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "name": "look", "description": "Looks at a place.", "parameters": SCHEMA}
FORCED: Any = {"type": "function", "name": "look"}
ANSWER: Final = 48
CALL_TOKENS: Final = 40  # with what stands around a call and its output
OPENING_TOKENS: Final = 120  # of the tool, in words
AT_ONCE: Final = 2
WINDOW_MAX: Final = 8192  # the model's
BAR: Final = 4.2


class ToolTurn(NamedTuple):
    agent: tuple[int, int]
    number: int
    seconds: float
    first_s: float
    prompt_tokens: int
    cached: int
    answer_tokens: int


class ToolAgent:
    """What one agent is given: rules, results and how long each takes, the same on both sides."""

    def __init__(self, seed: int, number: int, given: argparse.Namespace) -> None:
        self.name = (seed, number)
        chance = random.Random(f"{seed}/{number}")
        rules = [f"Rule {chance.randrange(99)}: look well." for _ in range(given.instruction_words // 5)]
        self.rules = " ".join([f"You are agent {seed}-{number}.", *rules])
        self.results = [
            f"Place {at}: " + " ".join(f"thing{chance.randrange(97)}" for _ in range(given.output_words))
            for at in range(given.turns)
        ]
        self.tool_s = [given.tool_s * chance.lognormvariate(0.0, 0.3) for _ in range(given.turns)]


async def through_our_door(agent: ToolAgent, port: int, model: str, turns: list[ToolTurn]) -> None:
    always = {
        "model": model,
        "instructions": agent.rules,
        "tools": [TOOL],
        "tool_choice": FORCED,
        "temperature": 0,
        "max_output_tokens": ANSWER,
    }
    async with connect(f"ws://127.0.0.1:{port}/v1/responses", max_size=None, ping_interval=None) as socket:
        turn: dict[str, Any] = {"input": "Look around."}
        for number, (result, tool_s) in enumerate(zip(agent.results, agent.tool_s, strict=True)):
            begun = time.perf_counter()
            await socket.send(json.dumps({"type": "response.create", **always, **turn}))
            event: Any = {"type": ""}
            first_s = 0.0
            while event["type"] not in ("response.completed", "response.incomplete", "response.failed", "error"):
                event = json.loads(await socket.recv())
                if not first_s and event["type"].endswith(".delta"):
                    first_s = time.perf_counter() - begun
            seconds = time.perf_counter() - begun
            if event["type"] != "response.completed":
                raise RuntimeError(json.dumps(event)[:2000])
            made = event["response"]
            call = next(item for item in made["output"] if item["type"] == "function_call")
            _check(call["arguments"])
            usage = made["usage"]
            cached = usage["input_tokens_details"]["cached_tokens"]
            computed = (usage["input_tokens"], cached, usage["output_tokens"])
            turns.append(ToolTurn(agent.name, number, seconds, first_s, *computed))
            item = {"type": "function_call_output", "call_id": call["call_id"], "output": result}
            turn = {"input": [item], "previous_response_id": made["id"]}
            await asyncio.sleep(tool_s)


async def through_vllms(agent: ToolAgent, http: httpx.AsyncClient, turns: list[ToolTurn]) -> None:
    history: list[Any] = [
        {"role": "system", "content": f"{agent.rules} Tools: {json.dumps(TOOL)}"},
        {"role": "user", "content": "Look around."},
    ]
    for number, (result, tool_s) in enumerate(zip(agent.results, agent.tool_s, strict=True)):
        body = {
            "model": "m",
            "messages": history,
            "max_tokens": ANSWER,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "response_format": {"type": "json_schema", "json_schema": {"name": "look", "schema": CALL}},
        }
        text, usage, first_s, begun = "", dict[str, Any](), 0.0, time.perf_counter()
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                raise RuntimeError((await answer.aread()).decode()[:2000])
            async for line in answer.aiter_lines():
                if line.startswith("data: ") and not line.endswith("[DONE]"):
                    event = json.loads(line[6:])
                    text += "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ()))
                    if text and not first_s:
                        first_s = time.perf_counter() - begun
                    usage = event.get("usage") or usage
        seconds = time.perf_counter() - begun
        _check(json.dumps(json.loads(text)["arguments"]))
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        computed = (usage["prompt_tokens"], cached, usage["completion_tokens"])
        turns.append(ToolTurn(agent.name, number, seconds, first_s, *computed))
        history += [{"role": "assistant", "content": text}, {"role": "user", "content": result}]
        await asyncio.sleep(tool_s)


def _check(arguments: str) -> None:
    value = json.loads(arguments)
    if set(value) != {"at"} or not 1 <= value["at"] <= 9:
        raise RuntimeError(f"{arguments!r} does not fit the tool's schema.")


def tokens_of(given: argparse.Namespace) -> int:
    """Of the longest agent at its end."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    seeds = range(given.seed, given.seed + given.rounds)
    agents = (ToolAgent(seed, number, given) for seed in seeds for number in range(given.agents))
    texts = max(sum(len(each) for each in tokenizer.encode_batch([agent.rules, *agent.results])) for agent in agents)
    turns: int = given.turns
    return int(texts) + turns * CALL_TOKENS + OPENING_TOKENS


def figures_of(name: str, turns: list[ToolTurn]) -> dict[str, float]:
    return {
        **spread(name + " turn {} s", [turn.seconds for turn in turns], "p50 p95"),
        **spread(name + " first word {} s", [turn.first_s for turn in turns], "p50"),
        f"{name} answer tokens": float(sum(turn.answer_tokens for turn in turns)),
        f"{name} prompt tokens computed": float(sum(turn.prompt_tokens - turn.cached for turn in turns)),
        f"{name} last prompt": float(max(turn.prompt_tokens for turn in turns)),
    }


async def main(given: argparse.Namespace) -> bool:
    each = tokens_of(given)
    window = min(WINDOW_MAX, (each + 128 + 511) // 512 * 512)
    blocks = max(1 + given.agents * each // BLOCK // 4, 1 + window // BLOCK)  # vLLM starts with no fewer
    vllm_args = json.dumps({"dtype": "bfloat16", "num_gpu_blocks_override": blocks})
    flags = ("--engine", "vllm", "--model", str(MODEL), "--vllm-args", vllm_args, "--threads", "1")
    played: dict[str, list[ToolTurn]] = {side: [] for side in given.sides}
    with ServerProcess(*flags, "--slots", str(AT_ONCE), "--context", str(window)) as server:
        async with contextlib.AsyncExitStack() as stack:
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}"))
            model = (await http.get("/v1/models")).json()["data"][0]["id"]
            other = http
            if "vLLM" in given.sides:
                other = await stack.enter_async_context(peer(blocks, AT_ONCE, window))
                other.timeout = httpx.Timeout(600)
            for round_ in range(given.rounds):
                for side in given.sides if round_ % 2 == 0 else given.sides[::-1]:
                    agents = [ToolAgent(given.seed + round_, number, given) for number in range(given.agents)]
                    turns: list[ToolTurn] = []
                    if side == "ours":
                        loops = [through_our_door(agent, server.port, model, turns) for agent in agents]
                    else:
                        loops = [through_vllms(agent, other, turns) for agent in agents]
                    begun = time.perf_counter()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(given.seconds_max or None):
                            await asyncio.gather(*loops)
                    played[side] += turns
                    if not turns:
                        raise RuntimeError(f"{side} has made no turn in {given.seconds_max} s")
                    median = sorted(turn.seconds for turn in turns)[len(turns) // 2]
                    print(f"{side}: {time.perf_counter() - begun:.0f} s, median turn {median:.2f} s", flush=True)
    both = set.intersection(*({(turn.agent, turn.number) for turn in turns} for turns in played.values()))
    figures: dict[str, Any] = {"agents": given.agents, "turns of each": given.turns, "blocks": blocks}
    figures["turns compared"] = len(both)
    if given.stages:
        for side, turns in played.items():
            for turn in sorted(turns):
                print(
                    f"{side} {turn.agent[1]}/{turn.number}: first word {turn.first_s:.2f} s, all {turn.seconds:.2f} s,"
                    f" {turn.prompt_tokens - turn.cached} of {turn.prompt_tokens} computed,"
                    f" {turn.answer_tokens} written"
                )
    for side, turns in played.items():
        figures |= figures_of(side, [turn for turn in turns if (turn.agent, turn.number) in both])
    if len(played) > 1:
        figures[f"median turn faster by (bar {BAR})"] = figures["vLLM turn p50 s"] / figures["ours turn p50 s"]
    report("tool_turns", figures)
    return bool(figures.get(f"median turn faster by (bar {BAR})", BAR) >= BAR)


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        agents=5,
        turns=35,
        rounds=1,
        instruction_words=Option(400, "words of an agent's rules"),
        output_words=Option(50, "words of a tool's result"),
        tool_s=Option(0.5, "seconds that a tool takes, about"),
        seconds_max=Option(0, "seconds that a side may take; 0: any"),
        sides=Option(["ours", "vLLM"], "who plays: `ours`, or both"),
        stages=Option(False, "print every turn"),
        seed=11,
    )
