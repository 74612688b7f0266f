"""Log probabilities wherever OpenAI's schemas have them: deltas, parts, items, conversations, completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import openai
import pytest

from inference.simulated import SimulatedOptions
from sessions.model.generation import Chunk, EngineInfo, Finish, GenerationRequest
from tests.support.doors.openai_server import SIMULATED, ScriptedEngine, serving

INCLUDE: Any = ["message.output_text.logprobs"]
TOOL: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}


class LoudEngine(ScriptedEngine):
    """Says how probable its tokens are: one entry for each."""

    @property
    def info(self) -> EngineInfo:
        return msgspec.structs.replace(super().info, sampling=super().info.sampling | {"logprobs"})

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        async for piece in super().generate(request):
            if isinstance(piece, Chunk) and request.sampling.logprobs:
                entry = {"token": piece.text, "logprob": -0.5, "bytes": list(piece.text.encode()), "top_logprobs": []}
                piece = msgspec.structs.replace(piece, logprobs=(entry,))
            yield piece


@pytest.fixture
async def client(options: SimulatedOptions) -> AsyncIterator[openai.AsyncOpenAI]:
    async with serving(options, engine=LoudEngine(options)) as server, server.client() as made:
        server.engine.script += ["so <they> say", "and on"]
        yield made


def spelt(logprobs: Any) -> str:
    return "".join(each.token for each in logprobs or ())


@pytest.mark.parametrize("tools", [[], [TOOL]], ids=["plain", "where a call may come"])
async def test_every_place_of_a_response_has_them(client: openai.AsyncOpenAI, tools: list[Any]) -> None:
    stream = await client.responses.create(model=SIMULATED, input="x", include=INCLUDE, tools=tools, stream=True)
    events: list[Any] = [event async for event in stream]
    by_kind = {event.type: event for event in events}
    deltas = "".join(spelt(event.logprobs) for event in events if event.type == "response.output_text.delta")
    assert deltas == spelt(by_kind["response.output_text.done"].logprobs) == "so <they> say"
    assert spelt(by_kind["response.content_part.done"].part.logprobs) == deltas
    assert spelt(by_kind["response.output_item.done"].item.content[0].logprobs) == deltas
    final = by_kind["response.completed"].response
    assert spelt(final.output[0].content[0].logprobs) == deltas
    kept: Any = await client.responses.retrieve(final.id)
    assert kept.output == final.output and type(kept.completed_at) in (int, float)
    whole: Any = await client.responses.create(model=SIMULATED, input="y", include=INCLUDE)
    assert spelt(whole.output[0].content[0].logprobs) == "and on"


async def test_items_of_a_conversation_have_them_on_request(client: openai.AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    await client.responses.create(model=SIMULATED, input="x", include=INCLUDE, conversation=conversation.id)
    for include, expected in ((INCLUDE, "so <they> say"), ([], "")):
        listed: list[Any] = [each async for each in client.conversations.items.list(conversation.id, include=include)]
        assert spelt(listed[0].content[0].logprobs) == expected
        one: Any = await client.conversations.items.retrieve(
            listed[0].id, conversation_id=conversation.id, include=include
        )
        assert spelt(one.content[0].logprobs) == expected


async def test_completions_have_them_with_their_places(client: openai.AsyncOpenAI) -> None:
    done = await client.completions.create(model=SIMULATED, prompt="x", logprobs=1)
    found: Any = done.choices[0].logprobs
    assert "".join(found.tokens) == done.choices[0].text == "so <they> say"
    places = zip(found.text_offset, found.tokens, strict=True)
    assert all(done.choices[0].text.startswith(token, at) for at, token in places)
