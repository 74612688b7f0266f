"""Sessions without asking: unmodified clients that resend their history, and which sessions they land in.

    python -m bench.openai_sessions --rounds 1000 --seed 1     two users of one key, identical prompts (simulated)
    python -m bench.openai_sessions --turns 10                 ten turns of one client on llama.cpp: tokens reused

A round interleaves the turns of two users at random, some of them at the same moment: no session may ever hold a turn
of both. In the second part every turn must land in the one session; what could be reused is the prompt and the answer
of the turn before. Then the client asks its last question again, and edits the one in the middle: both must be branches
of that session and cost what stands behind the fork, within `SPARE_TOKENS`. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import time
from typing import Any

import openai
import structlog

from bench.support import Server, report
from inference.simulated import SimulatedOptions
from tests.support.openai_server import SIMULATED, serving

OPTIONS = SimulatedOptions(step_base_s=0.0005, answer_tokens_mean=4)
USERS = ("ann", "bob")
TURNS = 3
LLAMA = ("--engine", "llama", "--threads", "1", "--slots", "2")
SPARE_TOKENS = 4  # what ends an answer and begins the next question's message


class Client:
    """Keeps a conversation as OpenAI's clients do, and the sessions that its answers came from."""

    def __init__(self, client: openai.AsyncOpenAI, model: str, opening: str, **more: Any) -> None:
        self._client = client
        self._model = model
        self._more = more
        self.messages: list[Any] = [{"role": "user", "content": opening}]
        self.sessions: list[str] = []
        self.usage: list[Any] = []

    async def turn(self, next_question: str) -> None:
        raw = await self._client.chat.completions.with_raw_response.create(
            model=self._model, messages=self.messages, **self._more
        )
        done = raw.parse()
        self.sessions.append(raw.headers["x-session-id"])
        self.usage.append(done.usage)
        self.messages.append(done.choices[0].message.model_dump(exclude_none=True))
        self.messages.append({"role": "user", "content": next_question})

    def branch(self, turn: int, question: str | None) -> Client:
        """A client with the conversation up to that turn's question, or to another one in its place."""
        other = Client(self._client, self._model, "", **self._more)
        other.messages = self.messages[: 2 * turn + 1]
        if question is not None:
            other.messages[-1] = {"role": "user", "content": question}
        return other


async def interleaved(rounds: int, seed: int) -> dict[str, Any]:
    """Two users of one key, `rounds` times. `shared` counts rounds in which a session held turns of both."""
    shared = moved = at_once = 0
    async with serving(OPTIONS) as server, server.client() as client:
        for number in range(rounds):
            rng = random.Random(seed * 1_000_003 + number)
            people = [Client(client, SIMULATED, f"round {number}", user=user, max_tokens=8) for user in USERS]
            left = [TURNS] * len(people)
            while any(left):
                ready = [index for index in range(len(people)) if left[index]]
                chosen = ready if rng.random() < 0.3 else [rng.choice(ready)]
                at_once += len(chosen) > 1
                await asyncio.gather(*(people[index].turn(f"turn {left[index]}") for index in chosen))
                for index in chosen:
                    left[index] -= 1
            shared += bool(set(people[0].sessions) & set(people[1].sessions))
            moved += any(len(set(person.sessions)) != 1 for person in people)
    return {"rounds": rounds, "turns at the same moment": at_once, "shared": shared, "moved": moved}


async def resending(turns: int) -> dict[str, Any]:
    """One client for `turns` turns on llama.cpp."""
    with Server(*LLAMA) as server:
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client:
            model = (await client.models.list()).data[0].id
            one = Client(client, model, "Tell me about rivers.", max_tokens=48, temperature=0)
            for number in range(turns):
                await one.turn(f"And what about number {number} of the things that you have just named?")
            behind = {}
            for name, turn in (("asked again", turns - 1), ("edited", turns // 2)):
                branch = one.branch(turn, None if name == "asked again" else "Name three lakes instead, and why.")
                await branch.turn("")
                usage, fork = branch.usage[0], one.usage[turn - 1].total_tokens
                behind[f"{name}: turn"] = turn + 1
                behind[f"{name}: sessions in all (bar 1)"] = len({*one.sessions, *branch.sessions})
                behind[f"{name}: prompt tokens"] = usage.prompt_tokens
                behind[f"{name}: behind the fork"] = usage.prompt_tokens - fork
                behind[f"{name}: computed"] = usage.prompt_tokens - (usage.prompt_tokens_details.cached_tokens or 0)
    before = one.usage[:-1]
    reusable = [usage.total_tokens for usage in before]
    cached = [usage.prompt_tokens_details.cached_tokens or 0 for usage in one.usage[1:]]
    return {
        "turns": turns,
        "sessions (bar 1)": len(set(one.sessions)),
        "context at the end, tokens": one.usage[-1].total_tokens,
        "reusable tokens": sum(reusable),
        "reused of them (bar 0.99)": sum(cached) / sum(reusable),
        "worst turn": min(have / could for have, could in zip(cached, reusable, strict=True)),
        **behind,
    }


def missed(figures: dict[str, Any]) -> bool:
    """Whether a bar of the second part is missed."""
    return (
        figures["sessions (bar 1)"] != 1
        or figures["reused of them (bar 0.99)"] < 0.99
        or any(figures[f"{name}: sessions in all (bar 1)"] != 1 for name in ("asked again", "edited"))
        or any(
            figures[f"{name}: computed"] > figures[f"{name}: behind the fork"] + SPARE_TOKENS
            for name in ("asked again", "edited")
        )
    )


def main(arguments: argparse.Namespace) -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    started = time.monotonic()
    if arguments.turns:
        figures = asyncio.run(resending(arguments.turns))
        wrong = missed(figures)
    else:
        figures = asyncio.run(interleaved(arguments.rounds, arguments.seed))
        wrong = bool(figures["shared"])
    report("openai_sessions", {**figures, "seconds": time.monotonic() - started})
    return int(wrong)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=1000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--turns", type=int, default=0)
    sys.exit(main(options.parse_args()))
