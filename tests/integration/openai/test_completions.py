"""`POST /v1/completions`: bare prompts by OpenAI's own SDK."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from msgspec.structs import replace

from inference.simulated import SimulatedOptions, decode
from inference.simulated.vocabulary import BEGIN
from sessions.model.generation import EngineInfo, TokenScore
from sessions.model.types import Tokens
from tests.support.doors.openai_server import SIMULATED, ScriptedEngine, Serving, serving


async def completed(client: openai.AsyncOpenAI, prompt: Any = "Once upon a time", **more: Any) -> Any:
    return await client.completions.create(model=SIMULATED, prompt=prompt, **more)


async def test_the_model_reads_the_prompt_and_nothing_else(client: openai.AsyncOpenAI, server: Serving) -> None:
    done = await completed(client, max_tokens=5)
    assert server.engine.prompts[-1][0] == BEGIN and decode(server.engine.prompts[-1][1:]) == "Once upon a time"
    assert done.object == "text_completion" and done.id.startswith("cmpl-") and done.choices[0].text
    assert done.usage.completion_tokens <= 5 and done.usage.prompt_tokens == len(server.engine.prompts[-1])
    assert (await completed(client)).usage.completion_tokens <= 16  # as OpenAI has it


async def test_a_stream_says_what_the_whole_says(client: openai.AsyncOpenAI) -> None:
    whole = await completed(client, max_tokens=8, temperature=0)
    stream = await completed(client, max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_and_choices_have_their_places(client: openai.AsyncOpenAI, stream: bool) -> None:
    prompts = ["a river", "a hill"]
    done = await completed(client, prompts, n=2, max_tokens=4, echo=True, stream=stream)
    texts: dict[int, str] = {}
    for each in [chunk async for chunk in done] if stream else [done]:
        for choice in each.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert sorted(texts) == [0, 1, 2, 3]
    assert [texts[index].startswith(prompts[index // 2]) for index in range(4)] == [True] * 4
    if not stream:
        assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens


async def test_every_choice_goes_on_with_the_bare_prompt(client: openai.AsyncOpenAI, server: Serving) -> None:
    done = await completed(client, n=3, max_tokens=4, seed=7)
    assert len(done.choices) == 3
    first, *others = (list(prompt) for prompt in server.engine.prompts[-3:])
    assert first[0] == BEGIN and decode(first[1:]) == "Once upon a time" and others == [first, first]


async def test_what_is_not_served_is_refused(client: openai.AsyncOpenAI) -> None:
    refused: list[dict[str, Any]] = [
        {"best_of": 3},
        {"suffix": "end"},
        {"echo": True, "logprobs": 1},  # the simulated engine cannot
        {"stream_options": {}},
    ]
    for more in refused:
        with pytest.raises(openai.BadRequestError):
            await completed(client, **more)
    prompts: list[Any] = [[], [[]], ["x"] * 65, [1, "x"], [10_000], [-1], None]
    for prompt in prompts:
        with pytest.raises(openai.BadRequestError) as caught:
            await completed(client, prompt)
        if prompt == []:  # it was told to be a string
            assert caught.value.param == "prompt" and "at least 1 item" in caught.value.message


async def test_a_key_gives_the_same_again(client: openai.AsyncOpenAI) -> None:
    more: Any = {"extra_headers": {"Idempotency-Key": "once"}, "temperature": 1}
    assert await completed(client, ["a", "b"], **more) == await completed(client, ["a", "b"], **more)


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_are_the_prompt_as_they_are(client: openai.AsyncOpenAI, server: Serving, stream: bool) -> None:
    river = [BEGIN, 104, 105]
    for prompt, expected in (([104, 105], [[104, 105]]), ([river, [106]], [river, [106]])):
        done = await completed(client, prompt, max_tokens=4, echo=True, stream=stream)
        assert sorted(map(list, server.engine.prompts[-len(expected) :])) == sorted(expected)
        texts: dict[int, str] = {}
        for each in [chunk async for chunk in done] if stream else [done]:
            for choice in each.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
        assert [texts[index].startswith(decode(tokens)) for index, tokens in enumerate(expected)] == [True] * len(texts)


@pytest.mark.parametrize("stream", [False, True])
async def test_no_token_is_wanted_and_none_is_written(
    client: openai.AsyncOpenAI, server: Serving, stream: bool
) -> None:
    for prompt in ("Once upon", [104, 105]):
        done = await completed(client, prompt, max_tokens=0, echo=True, stream=stream)
        chunks = [chunk async for chunk in done] if stream else [done]
        assert "".join(choice.text for each in chunks for choice in each.choices) == (
            prompt if isinstance(prompt, str) else "hi"
        )
        assert chunks[0].choices[0].finish_reason == "length"
        if not stream:
            assert done.usage.completion_tokens == 0 and done.usage.prompt_tokens >= 2
    assert not server.engine.prompts


class ScoringEngine(ScriptedEngine):
    """Scores prompts: the first ones at once, then never."""

    def __init__(self, at_once: int) -> None:
        super().__init__(SimulatedOptions())
        self.at_once = at_once
        self.waits, self.left = asyncio.Event(), asyncio.Event()
        self.scored: list[Tokens] = []

    @property
    def info(self) -> EngineInfo:
        return replace(super().info, sampling=super().info.sampling | {"logprobs", "top_logprobs"})

    async def score(self, prompt: Tokens, top: int) -> list[TokenScore]:
        self.scored.append(prompt)
        if len(self.scored) > self.at_once:
            self.waits.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
        return [TokenScore(-1.0, tuple((token, -1.0) for token in range(97, 97 + top)))] * len(prompt)


async def test_prompts_are_scored_for_nobody_who_has_left() -> None:
    engine = ScoringEngine(at_once=1)
    async with serving(SimulatedOptions(), engine=engine) as server, server.client() as client:
        asked = asyncio.create_task(completed(client, ["a", "b", "c"], max_tokens=0, echo=True, logprobs=1))
        async with asyncio.timeout(60):
            await engine.waits.wait()
            asked.cancel()
            await engine.left.wait()
    assert len(engine.scored) == 2


async def test_no_answer_shows_more_log_probabilities_than_memory_is_for() -> None:
    engine = ScoringEngine(at_once=1000)
    async with serving(SimulatedOptions(), engine=engine) as server, server.client() as client:
        more: Any = {"max_tokens": 0, "echo": True, "logprobs": 20, "n": 16}
        with pytest.raises(openai.BadRequestError, match="at most 500000 log probabilities") as refused:
            await completed(client, [[104] * 800] * 2, **more)
        assert refused.value.param == "logprobs" and not engine.scored
        with pytest.raises(openai.BadRequestError, match="at most 500000 log probabilities"):
            await completed(client, ["h" * 800] * 8, **more)
        assert len(engine.scored) == 2
        assert len((await completed(client, [[104] * 800], **more)).choices) == 16
