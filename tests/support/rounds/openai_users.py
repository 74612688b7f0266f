"""Unmodified clients that resend their history, two users of one key at a time, and the sessions that they land in.

A round interleaves the turns of two users at random, some of them at the same moment: no session may ever hold a turn
of both.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import openai

from inference.simulated import SimulatedOptions
from tests.support.doors.openai_server import SIMULATED, serving

OPTIONS = SimulatedOptions(step_base_s=0.0005, answer_tokens_mean=4)
USERS = ("ann", "bob")
TURNS = 3


class ResendingClient:
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

    def branch(self, turn: int, question: str | None) -> ResendingClient:
        """A client with the conversation up to that turn's question, or to another one in its place."""
        other = ResendingClient(self._client, self._model, "", **self._more)
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
            people = [ResendingClient(client, SIMULATED, f"round {number}", user=user, max_tokens=8) for user in USERS]
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
