"""How prompts get into llama.cpp's slots: in pieces of a step, so that one nobody wants any more holds nobody up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inference.llama import LlamaEngine, LlamaOptions
from inference.step_budget import LEAST_BESIDE, StepBudget
from testbed.engine_client import ask, key, prompt_of, request, until
from tests.support.engines.engines import AlwaysRestores

pytestmark = [pytest.mark.model, pytest.mark.slow]

STORY = "Tell me a story about a bird that could not fly, about its friends, and about the river that they crossed."


class Sent:
    """Which prompts were sent to llama-server, by their lengths."""

    def __init__(self, engine: LlamaEngine) -> None:
        self.lengths: list[int] = []
        self._stream = engine._up.http.stream
        engine._up.http.stream = self._noting  # type: ignore[method-assign]

    async def _noting(self, path: str, body: bytes) -> Any:
        self.lengths.append(len(msgspec.json.decode(body)["prompt"]))
        return await self._stream(path, body)


@pytest.fixture
async def engine(model_path: Path, tmp_path: Path) -> AsyncIterator[LlamaEngine]:
    options = LlamaOptions(model_path=model_path, slots=4, context_window=2048, staging_folder=tmp_path)
    engine = LlamaEngine(options, cost=AlwaysRestores())
    await engine.start()
    yield engine
    await engine.close()


@pytest.mark.parametrize("pieces", [LEAST_BESIDE, 64])
async def test_prompts_in_pieces_say_what_whole_ones_say_and_cost_no_more(engine: LlamaEngine, pieces: int) -> None:
    prompts = [await prompt_of(engine, f"{number}. {STORY} {STORY}") for number in range(7)]
    engine._up.prefill._budget = StepBudget(3600.0, 512)
    engine._up.prefill._budget.measured(512, 0.001)
    expected = [await ask(engine, key(f"alone{number}", "other"), prompts[number], max_tokens=6) for number in range(7)]
    engine._up.prefill._budget = StepBudget(3600.0, pieces)
    sent = Sent(engine)
    before = engine.stats().counters["prefilled_tokens"]
    flood = [ask(engine, key(f"f{number}", "flood"), prompts[number], max_tokens=6) for number in range(7)]
    answers = await asyncio.gather(*flood)
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]
    assert len(sent.lengths) > 7 and all(answer.finish.cached_tokens == 0 for answer in answers)
    counted_tokens = engine.stats().counters["prefilled_tokens"] - before
    assert sum(map(len, prompts)) <= counted_tokens <= 1.2 * sum(map(len, prompts))


@pytest.mark.parametrize("opening", [False, True])
async def test_a_prompt_that_nobody_wants_any_more_is_computed_no_further(engine: LlamaEngine, opening: bool) -> None:
    prompt = await prompt_of(engine, " ".join([STORY] * 20))
    piece = 64
    engine._up.prefill._budget = StepBudget(3600.0, piece)
    assert len(prompt) > 6 * piece
    sent = Sent(engine)
    shared: dict[str, Any] = {"shared_prefix": len(prompt) - 8} if opening else {}

    async def generate() -> None:
        async for _ in engine.generate(request(key("a"), prompt, **shared)):
            pass

    turn = asyncio.create_task(generate())
    await until(lambda: len(sent.lengths) == 2)
    turn.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await turn
    await until(lambda: engine.stats().running == 0)
    assert sent.lengths == [piece, 2 * piece]
    assert engine.stats().counters["prefilled_tokens"] <= 2 * piece
    assert engine.place(key("a")).tokens <= 2 * piece
    answer = await ask(engine, key("b", "other"), await prompt_of(engine, "Hi."), max_tokens=2)
    assert len(answer.tokens) == 2 and len(sent.lengths) == 3
