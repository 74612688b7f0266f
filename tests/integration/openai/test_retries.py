"""Requests that are repeated under one Idempotency-Key: over cut connections, restarts, and several gateways."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from inference.simulated import SimulatedOptions
from persistence.memory.database import MemoryDatabase
from tests.support.doors.openai_server import SIMULATED, another_door, serving
from tests.support.rounds.openai_retries import retried

OPENING: list[Any] = [{"role": "user", "content": "hello"}]


async def turn(client: openai.AsyncOpenAI, messages: list[Any], key: str | None = None, **more: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await client.chat.completions.create(
        model=SIMULATED, messages=messages, temperature=1, extra_headers=headers, **more
    )


async def second_turn(client: openai.AsyncOpenAI, question: str) -> list[Any]:
    """The messages of a client that asks for its second turn, which goes on in a session that there is."""
    first = await turn(client, [{"role": "user", "content": question}])
    said = first.choices[0].message.model_dump(exclude_none=True)
    return [{"role": "user", "content": question}, said, {"role": "user", "content": "more"}]


async def test_cut_anywhere_it_is_one_answer() -> None:
    done = await retried(rounds=24, seed=5)
    assert done["problems"] == [] and done["generations"] == done["usage rows"] == 24


async def test_a_repeated_turn_is_found_after_a_restart(options: SimulatedOptions) -> None:
    store = MemoryDatabase()
    async with serving(options, store=store) as server, server.client() as client:
        messages = await second_turn(client, "hello")
        before = await turn(client, messages, key="k")
        sessions, usage = len(server.sessions), server.usage
    async with serving(options, store=store) as server, server.client() as client:
        assert await turn(client, messages, key="k") == before
        assert (len(server.sessions), server.usage) == (sessions, usage) and server.engine.asked == []


async def test_another_body_under_the_key_is_refused_after_a_restart(options: SimulatedOptions) -> None:
    store = MemoryDatabase()
    async with serving(options, store=store) as server, server.client() as client:
        messages = await second_turn(client, "hello")
        await turn(client, messages, key="k")
    async with serving(options, store=store) as server, server.client() as client:
        for other in ([*messages[:-1], {"role": "user", "content": "else"}], OPENING):
            with pytest.raises(openai.ConflictError) as caught:
                await turn(client, other, key="k")
            assert caught.value.code == "idempotency_conflict"


async def test_two_gateways_that_are_asked_at_once_give_one_answer(options: SimulatedOptions) -> None:
    async with serving(options) as server, server.client() as one:
        door = await another_door(server)
        try:
            async with openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0) as other:
                for number in range(8):
                    messages = await second_turn(one, f"question {number}")
                    asked = len(server.engine.asked)
                    answers = await asyncio.gather(
                        *(turn(client, messages, key=f"k{number}") for client in (other, one, other, one))
                    )
                    assert all(answer == answers[0] for answer in answers)
                    assert len(server.engine.asked) == asked + 1
        finally:
            await door.stop()
