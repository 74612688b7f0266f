"""Questions about texts: token counts, token ids, moderations."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from inference.simulated import SimulatedOptions
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.doors.openai_server import SIMULATED, serving

WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


async def counted(client: openai.AsyncOpenAI, **request: Any) -> int:
    return (await client.responses.input_tokens.count(model=SIMULATED, **request)).input_tokens


async def test_input_tokens_are_those_of_the_response(client: openai.AsyncOpenAI) -> None:
    for request in (
        {"input": "hello there"},
        {"input": "hello", "instructions": "Be brief."},
        {"input": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}], "tools": [WEATHER]},
    ):
        made = await client.responses.create(model=SIMULATED, **request)
        assert await counted(client, **request) == made.usage.input_tokens
    conversation = await client.conversations.create(items=[{"role": "user", "content": "before"}])
    before = await counted(client, input="hello", conversation=conversation.id)
    first = await client.responses.create(model=SIMULATED, input="hello", conversation=conversation.id)
    assert first.usage is not None and before == first.usage.input_tokens
    after = await counted(client, input="and then", previous_response_id=first.id)
    second = await client.responses.create(model=SIMULATED, input="and then", previous_response_id=first.id)
    assert second.usage is not None and abs(after - second.usage.input_tokens) <= 2  # the answer's text, tokenised anew
    with pytest.raises(openai.NotFoundError):
        await counted(client, input="x", previous_response_id="resp_none")


async def test_token_ids_of_texts_and_conversations(http: httpx.AsyncClient) -> None:
    async def ids(**body: Any) -> Any:
        return (await http.post("/tokenize", json=body)).json()

    plain = await ids(model=SIMULATED, prompt="the river")
    assert plain["count"] == len(plain["tokens"]) == 2 and plain["max_model_len"] == 8192
    assert (await ids(content="the river"))["tokens"] == plain["tokens"]  # as llama.cpp's clients say it
    assert (await ids(prompt="the river", add_special_tokens=True))["tokens"][1:] == plain["tokens"]
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the river"}]
    whole, bare = await ids(messages=said), await ids(messages=said, add_generation_prompt=False)
    assert whole["tokens"][: bare["count"]] == bare["tokens"] and whole["count"] > bare["count"] > 2
    for wrong in ({}, {"prompt": "x", "messages": said}, {"prompt": "x", "model": None, "y": 1}):
        assert (await http.post("/tokenize", json=wrong)).status_code == 400
    assert (await http.post("/tokenize", json={"model": "none", "prompt": "x"})).status_code == 404


async def test_moderations_are_what_the_policy_finds(options: SimulatedOptions) -> None:
    filters = KeywordFilterSet(input_phrases=["nightjar"])
    async with serving(options, filters=filters) as server, server.client() as client:
        found = await client.moderations.create(input=["the project Nightjar", "a river"])
        assert [each.flagged for each in found.results] == [True, False]
        first: Any = found.results[0].to_dict()
        assert first["categories"]["keyword"] is True and first["category_scores"]["keyword"] == 1
        assert first["categories"]["violence"] is False and found.model == "keywords"
        parts: Any = [{"type": "text", "text": "nightjar"}]
        assert (await client.moderations.create(input=parts, model="omni-moderation-latest")).results[0].flagged


async def test_a_server_without_a_policy_calls_nothing_harmless(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.moderations.create(input="x")
    assert caught.value.code == "moderation_unavailable"


async def test_token_ids_become_their_text_again(http: httpx.AsyncClient) -> None:
    text = "the river é"
    tokens = (await http.post("/tokenize", json={"prompt": text})).json()["tokens"]
    assert (await http.post("/detokenize", json={"tokens": tokens})).json() == {"prompt": text}
    refused = await http.post("/detokenize", json={"tokens": [10_000_000]})
    error = refused.json()["error"]
    assert refused.status_code == 400 and "token id" in error["message"] and error["param"] == "tokens"


async def test_clients_learn_what_the_tokenizer_is(http: httpx.AsyncClient) -> None:
    shown = (await http.get("/tokenizer_info")).json()
    assert {"eos_token", "bos_token", "chat_template"} <= set(shown) and shown["model_max_length"] == 8192
    assert (await http.get("/tokenizer_info", params={"model": "none"})).status_code == 404
