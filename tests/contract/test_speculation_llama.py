"""llama.cpp with n-gram speculation, and with KV in 8 bits: the same text, KV that takes the tiers, half the bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from inference.llama import LlamaEngine, LlamaOptions
from sessions.model.types import Sampling
from tests.support.engines.engines import SLOTS, WINDOW, AlwaysRestores, ask, follow_up, key, prompt_of, until

pytestmark = [pytest.mark.model, pytest.mark.slow]

LIST = "Repeat this list exactly, and write nothing else:\n" + "\n".join(
    f"{number}. item number {number} has the colour {colour} and the price {number * 7} euros"
    for number, colour in enumerate(["red", "green", "blue", "white", "black"], 1)
)
Start = Callable[..., Any]


@pytest.fixture
async def start(model_path: Path, tmp_path: Path) -> AsyncIterator[Start]:
    engines: list[LlamaEngine] = []

    async def make(**options: Any) -> LlamaEngine:
        made = LlamaOptions(
            model_path=model_path,
            slots=SLOTS,
            context_window=WINDOW,
            spill_tokens_min=16,
            disk_folder=tmp_path / "kv",
            staging_folder=tmp_path / "staging",
            **options,
        )
        engine = LlamaEngine(made, cost=AlwaysRestores())
        engines.append(engine)
        await engine.start()
        return engine

    yield make
    for engine in engines:
        await engine.close()


async def test_repeated_text_is_drafted_and_the_answer_is_the_same(start: Start) -> None:
    plain = await start()
    prompt = await prompt_of(plain, LIST)
    expected = await ask(plain, key("a"), prompt, max_tokens=90)
    assert not plain.stats().counters["drafted_tokens"]
    await plain.close()
    engine = await start(speculation="ngram")
    answer = await ask(engine, key("b"), prompt, max_tokens=90)
    assert (answer.tokens, answer.text) == (expected.tokens, expected.text)
    counters = engine.stats().counters
    assert 0 < counters["accepted_tokens"] <= counters["drafted_tokens"]
    for cut in (20, 43, 71):  # as another replica goes on after a failure, in the middle of what was drafted
        emitted = expected.tokens[:cut]
        rest = await ask(engine, key(f"cut{cut}"), (*prompt, *emitted), max_tokens=90 - cut, emitted=emitted)
        assert emitted + rest.tokens == expected.tokens


async def test_an_answer_that_ends_among_drafts_leaves_its_own_tokens_and_no_others(start: Start) -> None:
    engine = await start(speculation="ngram")
    prompt = await prompt_of(engine, LIST)
    for number, tokens in enumerate((37, 50, 64)):
        who = key(f"s{number}")
        first = await ask(engine, who, prompt, max_tokens=tokens)
        later = await follow_up(engine, prompt, first, "Once more.")
        resident = await ask(engine, who, later, max_tokens=24)
        assert resident.finish.cached_tokens == len(prompt) + len(first.tokens) - 1
        cold = await ask(engine, key(f"cold{number}"), later, max_tokens=24)
        assert cold.tokens == resident.tokens
        for each in (who, key(f"cold{number}")):
            await engine.release(each)
    assert engine.stats().counters["reuse_misses"] == 0


@pytest.mark.parametrize("options", [{"speculation": "ngram"}, {"kv_dtype": "8bit"}], ids=["speculation", "8bit"])
async def test_a_session_comes_back_from_the_tiers(start: Start, options: dict[str, str]) -> None:
    engine = await start(**options)
    prompt = await prompt_of(engine, LIST)
    first = await ask(engine, key("a"), prompt, max_tokens=60)
    later = await follow_up(engine, prompt, first, "Once more.")
    await engine.close()  # which saves it
    engine = await start(**options)
    assert engine.place(key("a")).tier == "disk"
    again = await ask(engine, key("a"), later, max_tokens=24)
    assert again.finish.cached_tokens >= len(prompt)
    cold = await ask(engine, key("cold"), later, max_tokens=24)
    assert cold.tokens == again.tokens


async def test_8_bits_take_half_the_bytes_and_are_no_kv_of_the_other_kind(start: Start) -> None:
    held = {}
    for dtype in ("auto", "8bit"):
        engine = await start(kv_dtype=dtype)
        assert engine.place(key("of another kind")).tier == "none", "what has another shape is not found"
        prompt = await prompt_of(engine, LIST)
        who = key("mine" if dtype == "8bit" else "of another kind")
        await ask(engine, who, prompt, max_tokens=40, sampling=Sampling(temperature=0))
        await engine.park(who)
        for number in range(SLOTS):
            await ask(engine, key(f"{dtype}{number}"), await prompt_of(engine, f"Name river {number}."), max_tokens=1)
        await until(lambda engine=engine, who=who: engine.place(who).tier == "host")  # type: ignore[misc]
        held[dtype] = engine._slot_kv.tiers.host.bytes
        await engine.close()
    assert held["8bit"] <= 0.55 * held["auto"]
