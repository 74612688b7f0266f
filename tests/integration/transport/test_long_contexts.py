"""Conversations of 120,000 tokens through the doors: they go in whole, are read whole, and a turn costs only itself."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from inference.simulated import SimulatedOptions
from inference.simulated.vocabulary import WORDS
from tests.support.doors.assembly import Assembly, assembled
from tests.support.doors.websocket_wire import Wire, wire
from tests.support.rounds.openai_users import ResendingClient

WINDOW = 131_072
TOKENS = 120_000
TEXT = " ".join(random.Random(5).choices(WORDS, k=TOKENS))  # a token each
TURN_TOKENS = 64  # a short question and answer, with what stands around them


def options(window: int = WINDOW) -> SimulatedOptions:
    return SimulatedOptions(
        step_base_s=0.001,
        answer_tokens_mean=8,
        context_window=window,
        kv_tokens_max=4 * window,
        prefill_chunk_tokens=window,
        prefill_tokens_per_s=1e8,
    )


@pytest.fixture
async def server() -> AsyncIterator[Assembly]:
    async with assembled(engine=options()) as made:
        yield made


def computed(usage: Any) -> int:
    return int(usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens)


async def test_a_history_of_such_length_is_resent_and_only_its_end_is_computed(server: Assembly) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.server.url}/v1", api_key="none", max_retries=0) as client:
        one = ResendingClient(client, "simulated", TEXT, max_tokens=8)
        await one.turn("And what follows?")
        await one.turn("And then?")
        other = one.branch(1, "Something else.")
        await other.turn("And then?")
    assert one.usage[0].prompt_tokens > TOKENS and computed(one.usage[0]) > TOKENS
    for usage in (one.usage[1], other.usage[0]):
        assert usage.prompt_tokens > TOKENS and computed(usage) <= TURN_TOKENS
    assert len({*one.sessions, *other.sessions}) == 1


async def test_one_of_many_short_messages_is_resent_and_only_its_end_is_computed(server: Assembly) -> None:
    words = TEXT.split()
    async with openai.AsyncOpenAI(base_url=f"{server.server.url}/v1", api_key="none", max_retries=0) as client:
        one = ResendingClient(client, "simulated", "", max_tokens=8)
        one.messages = [
            {"role": "assistant" if number % 2 else "user", "content": " ".join(words[at : at + 240])}
            for number, at in enumerate(range(0, TOKENS, 240))
        ][:-1]
        await one.turn("And what follows?")
        await one.turn("And then?")
    assert computed(one.usage[0]) > TOKENS - 1_000 and computed(one.usage[1]) <= TURN_TOKENS


async def read_answer(client: Wire) -> tuple[str, dict[str, Any]]:
    """The text of the message, and what its answer used; acknowledges what it reads."""
    text = ""
    while True:
        message = await client.until(type="event")
        event = message["event"]
        client.send({"type": "ack", "session": "s", "offset": message["offset"]})
        if event["type"] == "item.created":
            text = event["item"]["content"][0]["text"]
        if event["type"] == "response.completed":
            return text, event["response"]["usage"]


async def test_a_message_of_such_length_is_read_by_every_device_and_the_next_turn_costs_only_itself(
    server: Assembly,
) -> None:
    async with wire(server.server.port) as client, wire(server.server.port) as other:
        for each in (client, other):
            await each.hello()
        client.send({"type": "session.create", "id": "c", "session": "s"})
        await client.until(type="ok")
        for each in (client, other):
            each.send({"type": "subscribe", "id": "r", "session": "s", "offset": 0})
            await each.until(type="caught_up")
        client.send({"type": "message.create", "id": "1", "session": "s", "content": TEXT})
        for each in (client, other):
            text, usage = await read_answer(each)
            assert text == TEXT and usage["input_tokens"] > TOKENS
        client.send({"type": "message.create", "id": "2", "session": "s", "content": "And then?"})
        _, usage = await read_answer(client)
        assert usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"] <= TURN_TOKENS
        async with wire(server.server.port) as late:
            await late.hello()
            late.send({"type": "subscribe", "id": "r", "session": "s", "offset": 0})
            assert (await read_answer(late))[0] == TEXT


@pytest.mark.parametrize("door", ["websocket", "openai"])
async def test_a_message_as_large_as_one_may_be_goes_in_however_its_json_spells_it(door: str) -> None:
    """Each letter of it takes two bytes, and six where its sender writes JSON in ASCII, as Python's `json` does."""
    text = "река " * 110_000  # 990,000 bytes, 2.75 MB of JSON
    async with assembled(engine=options(1 << 20)) as server:
        if door == "websocket":
            async with wire(server.server.port) as client:
                await client.hello()
                client.send({"type": "session.create", "id": "c", "session": "s"})
                await client.until(type="ok")
                client.send({"type": "message.create", "id": "1", "session": "s", "content": text, "respond": False})
                assert (await client.until(id="1"))["type"] == "ok"
        else:
            async with openai.AsyncOpenAI(base_url=f"{server.server.url}/v1", api_key="none") as openai_client:
                body: Any = {"model": "simulated", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
                done = await openai_client.chat.completions.create(**body)
                assert done.usage is not None and done.usage.prompt_tokens >= 990_000
