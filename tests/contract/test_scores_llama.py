"""Prompts scored by llama.cpp: the same log probabilities as when it writes, and OpenAI's `echo` over them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from inference.llama import LlamaEngine, LlamaOptions
from inference.llama.scorer import PIECE_TOKENS
from inference.simulated import SimulatedOptions
from sessions.model.types import Json, Sampling, TextOptions
from testbed.engine_client import ask, key
from tests.support.doors.openai_server import SIMULATED, Serving, serving

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

TEXT = "The capital of France is Paris. The capital of Germany is Berlin, and it is cold: 5 °C there. Once upon a time"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    engine: Any = LlamaEngine(
        LlamaOptions(
            model_path=model_path,
            model_name=SIMULATED,
            slots=1,
            context_window=1024,
            staging_folder=tmp_path_factory.mktemp("staging"),
        )
    )
    async with serving(SimulatedOptions(), engine=engine) as made:
        yield made


@pytest.fixture
def engine(server: Serving) -> LlamaEngine:
    return cast(LlamaEngine, server.engine)


@pytest.mark.slow
async def test_scores_are_the_engines_own(engine: LlamaEngine) -> None:
    """Behind the same prefill: what is computed in pieces of other sizes is rounded otherwise."""
    prompt = list(await engine.tokenizer.text(TEXT * 5))
    sampling = Sampling(temperature=0, logprobs=True, top_logprobs=3)
    for length in (1, 2, 9, PIECE_TOKENS, PIECE_TOKENS + 3, len(prompt)):
        answer = await ask(engine, key(f"s{length}"), prompt[:length], max_tokens=1, sampling=sampling)
        entries: list[Any] = [entry for chunk in answer.chunks for entry in chunk.logprobs]
        score = (await engine.score(prompt[:length], 3))[-1]
        assert score.logprob is None and [token for token, _ in score.top][:1] == list(answer.tokens)
        tops = [each["logprob"] for each in entries[0]["top_logprobs"]]
        assert all(math.isclose(own, top, abs_tol=1e-3) for own, (_, top) in zip(tops, score.top, strict=True))
    scores = await engine.score(prompt, 1)
    whole = await engine.score(prompt[:PIECE_TOKENS], 1)
    assert len(scores) == len(prompt) and scores[: PIECE_TOKENS - 1] == whole[:-1]
    assert all(score.logprob is not None and score.logprob <= score.top[0][1] for score in scores[:-1])


IN_PIECES: dict[str, Any] = {
    "emoji": "Repeat: 😀 😀 😀 😀 😀 😀",
    "Hebrew": "Repeat: שלום שלום שלום שלום שלום",
    "Han": "Repeat: 龘 龘 龘 龘 龘 龘",
}


@pytest.mark.parametrize(
    ("language", "schema"),
    [
        ("emoji", None),
        ("Han", {"type": "string"}),
        pytest.param("Hebrew", None, marks=pytest.mark.slow),
        pytest.param("emoji", {"type": "string"}, marks=pytest.mark.slow),
    ],
)
async def test_each_token_of_a_character_has_its_own(engine: LlamaEngine, language: str, schema: Json) -> None:
    """llama-server keeps back the probabilities of a token that ends inside a character."""
    prompt = list(await engine.tokenizer.text(IN_PIECES[language]))
    wanted = await engine.tokenizer.text(IN_PIECES[language].split()[-1])
    assert len(wanted) > 1
    text = None if schema is None else TextOptions({"type": "json_schema", "name": "x", "schema": schema})
    bias = {str(token): 8.0 for token in wanted}
    sampling = Sampling(temperature=0, logprobs=True, top_logprobs=3, logit_bias=bias, text=text)
    answer = await ask(engine, key("a"), prompt, max_tokens=12, sampling=sampling)
    entries: list[Any] = [entry for chunk in answer.chunks for entry in chunk.logprobs]
    assert len(entries) == len(answer.tokens) == 12
    assert any("\ufffd" in entry["token"] for entry in entries), "the model wrote no character in pieces"
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode(errors="ignore") == answer.text
    scores = await engine.score([*prompt, *answer.tokens], 3)
    for entry, score in zip(entries, scores[len(prompt) - 1 : -1], strict=True):
        assert score.logprob is not None and math.isclose(entry["logprob"], score.logprob, abs_tol=2e-2)
        tops = zip(entry["top_logprobs"], score.top, strict=True)
        assert all(math.isclose(each["logprob"], top, abs_tol=2e-2) for each, (_, top) in tops)
        assert entry["token"] == bytes(entry["bytes"]).decode(errors="replace")


async def test_completions_name_the_bytes_of_a_part_of_a_character(server: Serving, engine: LlamaEngine) -> None:
    async with server.client() as client:
        wanted = await engine.tokenizer.text("😀")
        more: Any = {"model": SIMULATED, "temperature": 0, "logit_bias": {str(token): 60 for token in wanted}}
        done = await client.completions.create(prompt="😀 😀", max_tokens=9, logprobs=2, **more)
        found: Any = done.choices[0].logprobs
        assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == 9
        assert "bytes:\\xf0\\x9f" in found.tokens and all(len(top) == 2 for top in found.top_logprobs)
        chat: Any = await client.chat.completions.create(
            messages=[{"role": "user", "content": "😀"}], max_tokens=9, logprobs=True, top_logprobs=2, **more
        )
        said = b"".join(bytes(each.bytes) for each in chat.choices[0].logprobs.content)
        assert said.decode(errors="ignore") == chat.choices[0].message.content
        assert len(chat.choices[0].logprobs.content) == chat.usage.completion_tokens == 9


async def test_an_evaluation_harness_picks_by_its_scores(server: Serving, engine: LlamaEngine) -> None:
    """As lm-evaluation-harness asks: token ids, one token more, and the sum from the context's end on."""
    async with server.client() as client:
        used = server.usage
        context, sums = list(await engine.tokenizer.text("The capital of France is")), []
        more: Any = {"model": SIMULATED, "temperature": 0, "logprobs": 1, "echo": True, "seed": 1234}
        for word in (" Paris", " Berlin"):
            ids = [*context, *await engine.tokenizer.text(word)]
            done = await client.completions.create(prompt=[ids], max_tokens=1, **more)
            found: Any = done.choices[0].logprobs
            assert done.choices[0].text == "".join(found.tokens) and found.token_logprobs[0] is None
            assert found.top_logprobs[0] is None and len(found.tokens) == len(ids) + 1
            sums.append(sum(found.token_logprobs[len(context) : -1]))
            own = [score.logprob for score in (await engine.score(ids, 1))[len(context) - 1 : -1]]
            assert math.isclose(sums[-1], sum(each for each in own if each is not None), abs_tol=1e-3)
            none = await client.completions.create(prompt=[ids], max_tokens=0, **more)
            bare: Any = none.choices[0].logprobs
            assert bare.token_logprobs == found.token_logprobs[:-1] and none.usage is not None
            assert none.usage.completion_tokens == 0
            longer = await client.completions.create(prompt=[ids], max_tokens=3, **more)
            third: Any = longer.choices[0].logprobs
            assert third.tokens[: len(found.tokens)] == found.tokens
            places = zip(third.text_offset, third.tokens, strict=True)
            assert all(longer.choices[0].text[at:].startswith(token) for at, token in places)
        assert sums[0] > sums[1]
        assert server.usage - used == 6 + 2
