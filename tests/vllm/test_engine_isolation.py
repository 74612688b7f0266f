"""No session ever sees another's KV on vLLM, whatever is evicted, cancelled, deleted or preempted meanwhile.

Every answer is compared with the one that the session gives alone. The device holds the blocks of one long session and
a few short ones; two long ones that run together do not fit, so that one of them is preempted while its blocks are
loaded, saved or in use.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from inference.vllm.engine import VllmEngine
from sessions.model.types import Sampling
from testbed.engine_client import Answer, ask, key, prompt_of, request, until
from tests.support.engines.vllm_world import BLOCK_TOKENS, FEW, VllmWorld, offload_of, settled, start

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

LONG = ("long0", "long1")
SHORT = tuple(f"short{n}" for n in range(5))
HALF = (FEW - 1) // 2 * BLOCK_TOKENS  # tokens of the blocks that two may have at once
STORY = "Tell me a story about a bird that could not fly, and about its friends in the wood by the lake. " * 4
ROUNDS, TOGETHER = 75, 4  # 300 interleavings


async def long_prompt(engine: VllmEngine, word: str, tokens: int) -> tuple[int, ...]:
    question = await prompt_of(engine, f"Begin with the word {word}.")
    filler = tuple(await engine.tokenizer.text(f" {word} river" * tokens))
    return (*filler[: tokens - len(question)], *question)


def endless(engine: VllmEngine) -> Sampling:
    """Answers have all the tokens that they may."""
    return Sampling(temperature=0, logit_bias={str(end): -100.0 for end in engine._ends})


async def test_sessions_never_see_each_other_under_eviction_preemption_aborts_and_deletion(world: VllmWorld) -> None:
    chance = random.Random(300)
    engine = await start(world, device_blocks=FEW, waiting_max=64)
    prompts = {name: await prompt_of(engine, f"{STORY} Its secret name was {name * 3}.") for name in SHORT}
    prompts |= {
        name: await long_prompt(engine, word, HALF - 8) for name, word in zip(LONG, ("stone", "fern"), strict=True)
    }
    on = endless(engine)
    tokens = dict.fromkeys(SHORT, 8) | dict.fromkeys(LONG, 20)
    alone = {}
    for name, prompt in prompts.items():
        alone[name] = (await ask(engine, key(f"{name}-alone"), prompt, max_tokens=tokens[name], sampling=on)).tokens
        await engine.release(key(f"{name}-alone"))
    fates = dict.fromkeys(("left", "cancelled", "deleted", "answered"), 0)

    async def one(name: str, fate: str) -> None:
        fates[fate] += 1
        match fate:
            case "left":
                stream = engine.generate(request(key(name), prompts[name], max_tokens=tokens[name], sampling=on))
                cut = chance.randrange(3)
                async for _ in stream:
                    if cut == 0:
                        break
                    cut -= 1
                await stream.aclose()  # type: ignore[attr-defined]
            case "cancelled":  # anywhere: while it waits, is planned, loaded, computed or saved
                task = asyncio.create_task(ask(engine, key(name), prompts[name], max_tokens=tokens[name], sampling=on))
                for _ in range(chance.randrange(200)):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            case "deleted":
                await engine.release(key(name))
            case _:
                who, priority = key(name), chance.randrange(3)
                answer = await ask(engine, who, prompts[name], max_tokens=tokens[name], sampling=on, priority=priority)
                assert answer.tokens == alone[name]

    for _ in range(ROUNDS):
        names = [chance.choice(LONG if chance.random() < 0.15 else SHORT) for _ in range(TOGETHER)]
        drawn = chance.choices(tuple(fates), (1, 1, 1, 5), k=TOGETHER)
        await asyncio.gather(*(one(name, fate) for name, fate in zip(names, drawn, strict=True)))
    await until(lambda: engine.stats().running == 0)
    await settled(engine)
    assert fates["answered"] > 150 and all(count > 20 for count in fates.values())
    counters = engine.stats().counters
    assert counters["restores"] > 20
    refused = {name: count for name, count in counters.items() if name.startswith("refused_") and count}
    assert set(refused) <= {"refused_unreadable"}  # deleted between its plan and its load
    tiers = offload_of(engine).tiers
    assert tiers.host.bytes == sum(snapshot.bytes for snapshot in tiers.host)  # nothing leaked


async def test_preempted_answers_are_what_they_would_have_been(world: VllmWorld) -> None:
    """Two answers begin side by side and grow until the device cannot hold both: one makes room and comes back."""
    engine = await start(world, device_blocks=FEW)
    prompts = [await long_prompt(engine, word, HALF - 8) for word in ("stone", "fern")]
    more: dict[str, Any] = {"max_tokens": 30, "sampling": endless(engine)}
    alone = [await ask(engine, key(f"{n}-alone"), prompt, **more) for n, prompt in enumerate(prompts)]
    assert all(len(answer.tokens) == 30 for answer in alone)
    order: list[int] = []

    async def noted(n: int) -> Answer:
        answer = []
        async for item in engine.generate(request(key(f"{n}"), prompts[n], **more)):
            answer.append(item)
            order.append(n)
        return Answer(tuple(answer[:-1]), answer[-1])  # type: ignore[arg-type]

    both = await asyncio.gather(noted(0), noted(1))
    assert [answer.tokens for answer in both] == [answer.tokens for answer in alone]
    first, second = order.index(0), order.index(1)
    ended = min(max(i for i, n in enumerate(order) if n == who) for who in (0, 1))
    assert max(first, second) < ended, "both ran at once, and both do not fit"
    await settled(engine)
