"""More conversations than the device holds, through `/v1/chat/completions` of the whole server against vLLM's own.

    .venv-vllm/bin/python -m bench.openai.vllm_door --pairs 10

Eight clients that resend their history, five turns each, two at a time, as many blocks on both sides, bfloat16. Both
servers are up, one works at a time, in turns which first, other words in each pair. Before it is resent an answer is
changed with the chance `--changed`: emptied, cut where a reader pressed stop, trimmed, or a dot in its place. Bars for
follow-ups, over all pairs: first token 10 times sooner at the median, 8 times at the 95th percentile, 2.3 times the
tokens/s (the pairs' mean), at most 1% computed again of the whole blocks that stand before the first difference, no
save lost.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import httpx
import msgspec

from bench.engine.vllm_support import BLOCK, MODEL, peer
from bench.support import Option, lower_bound, report, run_bench, spread
from inference.tokens import as_tokens, common_prefix
from testbed.server_process import ServerProcess

WINDOW: Final = 4096  # vLLM starts with no fewer blocks than one context takes
ANSWER: Final = 32
WORDS: Final = (
    "river",
    "lake",
    "stone",
    "bridge",
    "winter",
    "harbour",
    "letter",
    "window",
    "garden",
    "engine",
    "copper",
)
TOKENS_PER_WORD: Final = 1.25  # of `sentence`, about
AT_ONCE: Final = 2
LOST: Final = re.compile(r'^sessile_engine_events_total\{event="saves_(?!late|of_others)\w+"\} (\S+)', re.MULTILINE)
BARS: Final = {"p50 sooner by (bar 10)": 10, "p95 sooner by (bar 8)": 8, "tokens/s higher by (bar 2.3)": 2.3}

Messages = list[dict[str, Any]]


def sentence(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words)).capitalize() + "."


class DoorTurn(NamedTuple):
    text: str
    ttft_s: float
    prompt_tokens: int
    answer_tokens: int
    cached: int


class DoorPlayed(NamedTuple):
    """What one side did in one pair."""

    follow_ups_s: list[float]
    tokens_per_s: float
    reusable: int  # tokens, in whole blocks
    reused: int


class DoorClient:
    """A conversation that its client keeps."""

    def __init__(self, rng: random.Random, opening: int, changed: float) -> None:
        self.messages: Messages = [{"role": "user", "content": sentence(rng, round(opening / TOKENS_PER_WORD))}]
        self.held: list[int] = []
        self._rng = rng
        self._changed = changed

    def answered(self, text: str) -> None:
        """Puts the answer there as it will be resent, and the next question."""
        if self._rng.random() < self._changed:
            half = text[: len(text) // 2]
            text = self._rng.choice(["", ".", half, text.strip()])
        self.messages.append({"role": "assistant", "content": text})
        self.messages.append({"role": "user", "content": sentence(self._rng, round(40 / TOKENS_PER_WORD))})


class DoorServer:
    """One of the servers."""

    def __init__(self, http: httpx.AsyncClient, tokenizer: httpx.AsyncClient, model: str) -> None:
        self._http = http
        self._tokenizer = tokenizer  # ours: both have the model's
        self._model = model
        self.played: list[DoorPlayed] = []

    async def play(self, clients: Sequence[DoorClient], turns: int) -> None:
        """Every client's turn k before anybody's turn k + 1."""
        follow_ups: list[DoorTurn] = []
        busy_s, produced, reusable, reused = 0.0, 0, 0, 0
        for number in range(turns):
            prompts = [await self.tokens(client.messages) for client in clients]
            queue = list(clients)
            done: dict[DoorClient, DoorTurn] = {}

            async def worker(queue: list[DoorClient], done: dict[DoorClient, DoorTurn]) -> None:
                while queue:
                    client = queue.pop(0)
                    done[client] = await self.complete(client.messages)

            begun = time.perf_counter()
            await asyncio.gather(*(worker(queue, done) for _ in range(AT_ONCE)))
            busy_s += time.perf_counter() - begun
            for client, prompt in zip(clients, prompts, strict=True):
                turn = done[client]
                produced += turn.answer_tokens
                if number:
                    follow_ups.append(turn)
                    whole_blocks = common_prefix(as_tokens(client.held), as_tokens(prompt)) // BLOCK * BLOCK
                    reusable += whole_blocks
                    reused += min(whole_blocks, turn.cached)
                whole = await self.tokens([*client.messages, {"role": "assistant", "content": turn.text}])
                client.held = whole[: turn.prompt_tokens + turn.answer_tokens - 1]
                client.answered(turn.text)
        firsts = [turn.ttft_s for turn in follow_ups]
        self.played.append(DoorPlayed(firsts, produced / busy_s, reusable, reused))

    async def tokens(self, messages: Messages) -> list[int]:
        answer = await self._tokenizer.post("/tokenize", json={"messages": messages})
        answer.raise_for_status()
        return list(answer.json()["tokens"])

    async def complete(self, messages: Messages) -> DoorTurn:
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": ANSWER,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        text, first_s, usage = "", 0.0, dict[str, Any]()
        begun = time.perf_counter()
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if not line.startswith("data: ") or line.endswith("[DONE]"):
                    continue
                event = msgspec.json.decode(line[6:])
                for choice in event.get("choices", ()):
                    text += choice["delta"].get("content") or ""
                    if not first_s and (text or choice.get("finish_reason")):
                        first_s = time.perf_counter() - begun
                usage = event.get("usage") or usage
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return DoorTurn(text, first_s, usage["prompt_tokens"], usage["completion_tokens"], cached)

    def figures(self, name: str) -> dict[str, float]:
        firsts = [second for each in self.played for second in each.follow_ups_s]
        return {
            **spread(name + " TTFT {} ms", firsts, "p50 p95", times=1000),
            f"{name} tokens/s": sum(each.tokens_per_s for each in self.played) / len(self.played),
            f"{name} computed again": 1
            - sum(each.reused for each in self.played) / sum(each.reusable for each in self.played),
        }


def blocks_of(given: argparse.Namespace) -> int:
    """Returns how many blocks each engine has: `--blocks`, or a quarter of what all tokens need."""
    if given.blocks:
        return int(given.blocks)
    each: int = given.opening + given.turns * ANSWER + (given.turns - 1) * 40
    sessions: int = given.sessions
    return 1 + sessions * each // BLOCK // 4


async def main(given: argparse.Namespace) -> bool:
    blocks = blocks_of(given)
    vllm_args = msgspec.json.encode({"dtype": "bfloat16", "num_gpu_blocks_override": blocks}).decode()
    flags = ("--engine", "vllm", "--model", str(MODEL), "--vllm-args", vllm_args, "--threads", str(given.threads))
    with ServerProcess(*flags, "--slots", str(AT_ONCE), "--context", str(WINDOW)) as server:
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=300) as http,
            peer(blocks, AT_ONCE, WINDOW, given.threads) as other,
        ):
            model = (await http.get("/v1/models")).json()["data"][0]["id"]
            ours, theirs = DoorServer(http, http, model), DoorServer(other, http, "m")
            for pair in range(given.pairs):
                for side in (ours, theirs) if pair % 2 else (theirs, ours):
                    rng = random.Random(given.seed + pair)
                    chances = [random.Random(rng.random()) for _ in range(given.sessions)]
                    await side.play([DoorClient(each, given.opening, given.changed) for each in chances], given.turns)
                lost = LOST.findall((await http.get("/metrics")).text)
                print(f"{pair}: {ours.played[-1].tokens_per_s:.1f} : {theirs.played[-1].tokens_per_s:.1f}", flush=True)
    rates = [a.tokens_per_s / b.tokens_per_s for a, b in zip(ours.played, theirs.played, strict=True)]
    figures: dict[str, Any] = {"pairs": given.pairs, "blocks": blocks, **ours.figures("ours"), **theirs.figures("vLLM")}
    figures["p50 sooner by (bar 10)"] = figures["vLLM TTFT p50 ms"] / figures["ours TTFT p50 ms"]
    figures["p95 sooner by (bar 8)"] = figures["vLLM TTFT p95 ms"] / figures["ours TTFT p95 ms"]
    figures["tokens/s higher by (bar 2.3)"] = sum(rates) / len(rates)
    figures["tokens/s, lower bound"] = lower_bound(rates) if given.pairs > 1 else None
    figures["saves lost (bar 0)"] = sum(map(float, lost))
    report("vllm_door", figures)
    kept = figures["ours computed again"] <= 0.01 and not figures["saves lost (bar 0)"]
    return kept and all(figures[name] >= bar for name, bar in BARS.items())


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        pairs=10,
        sessions=8,
        turns=5,
        opening=Option(2500, "tokens of a first message, about"),
        blocks=Option(0, "of 32 tokens; 0: a quarter of what all tokens need"),
        threads=Option(2, "of each engine"),
        changed=Option(0.25, "how many of the answers are resent otherwise"),
        seed=6,
    )
