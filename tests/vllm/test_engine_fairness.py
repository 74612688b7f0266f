"""vLLM is shared fairly: a tenant that floods it makes room in mid-answer, and its own answers stay the same."""

from __future__ import annotations

import asyncio

import pytest

from inference.vllm.engine import VllmEngine
from sessions.limits import Share
from sessions.model.types import Sampling
from testbed.engine_client import Answer, ask, key, prompt_of, until
from tests.support.engines.engines import SLOTS
from tests.support.engines.vllm_world import VllmWorld, start

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

LONG = 400
ENDLESS = Sampling(temperature=0, ignore_eos=True)


async def flood(engine: VllmEngine, number: int) -> Answer:
    prompt = await prompt_of(engine, f"Tell me story number {number}.")
    return await ask(engine, key(f"flood{number}", "flood"), prompt, max_tokens=LONG, sampling=ENDLESS)


async def test_a_flood_makes_room_and_its_answers_stay_the_same(world: VllmWorld) -> None:
    engine = await start(world)
    undisturbed = [await flood(engine, number) for number in range(SLOTS)]
    for number in range(SLOTS):
        await engine.release(key(f"flood{number}", "flood"))
    assert engine.stats().counters["preemptions"] == 0
    flooding = [asyncio.create_task(flood(engine, number)) for number in range(SLOTS + 2)]
    await until(lambda: engine.stats().waiting == 2)
    prompt = await prompt_of(engine, "Hello.")
    other = await ask(engine, key("one", "other"), prompt, max_tokens=4)
    assert other.tokens
    assert not any(task.done() for task in flooding), "it went before what had begun"
    disturbed = [await task for task in flooding]
    assert engine.stats().counters["preemptions"] >= 1
    for before, after in zip(undisturbed, disturbed, strict=False):
        assert (after.tokens, after.text, after.finish.prompt_tokens) == (
            before.tokens,
            before.text,
            before.finish.prompt_tokens,
        )


async def test_a_forecast_knows_of_those_who_wait(world: VllmWorld) -> None:
    engine = await start(world)
    idle = engine.forecast(key("a", "flood"), Share(), 100)
    assert idle.position == 0 and idle.idle
    flooding = [asyncio.create_task(flood(engine, number)) for number in range(SLOTS + 2)]
    await until(lambda: engine.stats().waiting == 2)
    theirs, others = engine.forecast(key("a", "flood"), Share(), 100), engine.forecast(key("b", "other"), Share(), 100)
    assert theirs.position >= 2 and not theirs.idle
    assert others.position == 0
    for task in flooding:
        task.cancel()
    await asyncio.gather(*flooding, return_exceptions=True)
    await until(lambda: not engine.stats().running)
