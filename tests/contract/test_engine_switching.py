"""Two models behind one `Engine`: who writes what, whose KV is whose, and pairs that are refused at the start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inference.brownout_engine import BrownoutEngine, make_brownout_engine
from inference.kv.envelope import decode_header
from inference.llama import LlamaEngine, LlamaOptions
from inference.simulated import SimulatedEngine, SimulatedOptions
from inference.tokens import as_tokens
from sessions.limits import HoldsKV, Share
from sessions.model.errors import BadInput, Unavailable
from sessions.model.types import ResponseId, TenantId
from sessions.ports import Engine
from testbed.engine_client import ask, follow_up, key, open_stream, prompt_of, until
from tests.support.engines.engines import WINDOW
from tests.support.virtual_time import virtual

STORY = "Tell me a story about a bird that could not fly, about its friends, and about the river that they crossed."
LARGE = SimulatedOptions(
    model="large", slots=2, context_window=WINDOW, kv_tokens_max=8 * WINDOW, step_base_s=0.001, answer_tokens_mean=0
)
SMALL = LARGE.smaller("small", 4.0, 1)
Start = Callable[[], Any]


@pytest.fixture(params=["simulated", pytest.param("llama", marks=[pytest.mark.model, pytest.mark.slow])])
async def start(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a pair; the same one again after it was closed."""
    made: list[BrownoutEngine] = []
    if request.param == "llama":
        main = LlamaOptions(
            model_path=request.getfixturevalue("model_path"),
            model_name="large",
            slots=2,
            context_window=WINDOW,
            spill_tokens_min=16,
            disk_folder=tmp_path / "kv",
            save_idle_s=0.0,
        )
        cut = request.getfixturevalue("smaller_model_path")

    async def make() -> BrownoutEngine:
        if request.param == "simulated":
            engine = make_brownout_engine(SimulatedEngine(LARGE), lambda _: SimulatedEngine(SMALL))
        else:
            engine = make_brownout_engine(
                LlamaEngine(main), lambda info: LlamaEngine(main.smaller(cut, 1, 1, info.context_window))
            )
        made.append(engine)
        await engine.start()
        return engine

    yield make
    for engine in made:
        for each in (engine.main.stats(), engine.smaller.stats()):
            assert (each.running, each.waiting) == (0, 0), "a test left something running"
        await engine.close()


@asynccontextmanager
async def alone(engine: Engine) -> AsyncIterator[Engine]:
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def again(engine: Engine) -> Engine:
    """Another engine of the same model, which knows nothing."""
    assert isinstance(engine, SimulatedEngine | LlamaEngine)
    if isinstance(engine, LlamaEngine):
        return LlamaEngine(msgspec.structs.replace(engine.options, disk_folder=None))
    return SimulatedEngine(engine.options)


# -- who writes ------------------------------------------------------------------------------------------------------


async def test_each_model_writes_as_if_the_other_were_not_there(start: Start) -> None:
    engine = await start()
    small = engine.info.smaller_model
    prompt = await prompt_of(engine, STORY)
    both = await asyncio.gather(
        ask(engine, key("a"), prompt, max_tokens=30), ask(engine, key("b"), prompt, max_tokens=30, model=small)
    )
    assert both[0].tokens != both[1].tokens
    for said, engine_alone in zip(both, (engine.main, engine.smaller), strict=True):
        async with alone(again(engine_alone)) as lone:
            assert (await ask(lone, key("a"), prompt, max_tokens=30)).tokens == said.tokens


async def test_what_it_is_and_counts_is_the_models_own_with_the_smaller_one_beside_it(start: Start) -> None:
    engine = await start()
    info, small = engine.info, engine.info.smaller
    assert small is not None and info.smaller_model == small.model != info.model
    assert small.context_window == info.context_window and small.slots == 1
    prompt = await prompt_of(engine, "Name a river.")
    before = engine.stats()
    await ask(engine, key("a"), prompt, max_tokens=5, model=small.model)
    after = engine.stats()
    assert after.counters == before.counters and after.smaller is not None and before.smaller is not None
    assert after.smaller.counters["decoded_tokens"] - before.smaller.counters["decoded_tokens"] == 5
    assert (after.slots, after.smaller.slots) == (2, 1)
    held = await open_stream(engine, key("b"), prompt, model=small.model)
    assert engine.stats().running == 0 and engine.stats().smaller.running == 1
    await held.abort()


# -- whose KV --------------------------------------------------------------------------------------------------------


async def test_a_turn_back_at_the_model_computes_only_what_was_said_meanwhile(start: Start) -> None:
    engine = await start()
    a, small = key("a"), engine.info.smaller_model
    prompt = await prompt_of(engine, STORY)
    first = await ask(engine, a, prompt, max_tokens=20)
    held = engine.place(a)
    second_prompt = await follow_up(engine, prompt, first, "And then?")
    second = await ask(engine, a, second_prompt, max_tokens=20, model=small)
    assert second.finish.cached_tokens == 0, "the smaller one has never seen this conversation"
    assert engine.place(a) == held, "the model's KV stays where it was"
    third_prompt = await follow_up(engine, second_prompt, second, "And in the end?")
    third = await ask(engine, a, third_prompt, max_tokens=20)
    assert third.finish.cached_tokens == held.tokens == len(prompt) + len(first.tokens) - 1
    async with alone(again(engine.main)) as lone:
        assert (await ask(lone, a, third_prompt, max_tokens=20)).tokens == third.tokens
    fourth_prompt = await follow_up(engine, third_prompt, third, "Who wrote this?")
    fourth = await ask(engine, a, fourth_prompt, max_tokens=5, model=small)
    assert fourth.finish.cached_tokens == len(second_prompt) + len(second.tokens) - 1, "nor does that one forget"


async def test_no_byte_of_one_models_kv_is_read_by_the_other(start: Start) -> None:
    """The same session with the same tokens at both: neither finds anything of the other's, in memory, on disk, after a
    restart, or in what goes to a peer."""
    engine = await start()
    a, small = key("a"), engine.info.smaller_model
    prompt = await prompt_of(engine, STORY)
    assert (await ask(engine, a, prompt, max_tokens=8, model=small)).finish.cached_tokens == 0
    assert engine.place(a).tier == "none", "it keeps what its slots hold"
    assert await engine.export_kv(a, as_tokens(prompt)) is None
    assert (await ask(engine, a, prompt, max_tokens=8)).finish.cached_tokens == 0
    export = await engine.export_kv(a, as_tokens(prompt))
    assert export is not None
    sent = b"".join([chunk async for chunk in export.chunks])
    header = decode_header(sent)
    assert header is not None and header[0].identity.model_fingerprint == engine.main.info.model_fingerprint

    async def stream() -> AsyncIterator[bytes]:
        yield sent

    async with alone(again(engine.smaller)) as lone:
        assert await lone.import_kv(a, stream()) == 0, "a peer's smaller model refuses it too"
    await engine.close()
    later = await start()
    assert (await ask(later, a, prompt, max_tokens=8, model=small)).finish.cached_tokens == 0


async def test_release_erases_at_both(start: Start) -> None:
    engine = await start()
    a, small = key("a"), engine.info.smaller_model
    prompt = await prompt_of(engine, STORY)
    for model in ("", small):
        await ask(engine, a, prompt, max_tokens=4, model=model)
    await engine.park(a)
    await engine.release(a)
    for model in ("", small):
        assert (await ask(engine, a, prompt, max_tokens=4, model=model)).finish.cached_tokens == 0


async def test_of_a_session_that_left_memory_only_the_model_keeps_something(start: Start) -> None:
    """Else what the smaller one was left with when brownout ended would count against the tenant until the next one."""
    engine = await start()
    a, small = key("a"), engine.info.smaller_model
    prompt = await prompt_of(engine, STORY)
    await ask(engine, a, prompt, max_tokens=4)
    held = engine.place(a).tokens
    await ask(engine, a, prompt, max_tokens=4, model=small)
    assert engine.smaller.place(a).tokens
    await engine.park(a)
    assert not engine.smaller.place(a).tokens and engine.place(a).tokens == held
    smaller = engine.smaller
    if isinstance(engine, HoldsKV) and isinstance(smaller, HoldsKV):
        assert smaller.holdings.bytes_of(a.tenant) == 0


@virtual
async def test_a_forecast_counts_what_only_the_other_one_holds() -> None:
    engine = make_brownout_engine(SimulatedEngine(LARGE), lambda _: SimulatedEngine(SMALL))
    async with alone(engine):
        prompt = await prompt_of(engine, STORY)
        for model in ("", "small"):  # each has learned how fast it is
            await ask(engine, key("other"), prompt, max_tokens=4, model=model)
        share, a = Share(), key("a")

        def ttft_s(model: str) -> float:
            found = engine.forecast(a, share, 10, model)
            assert found is not None
            return found.ttft_s

        before = ttft_s(""), ttft_s("small")
        answer = await ask(engine, a, prompt, max_tokens=20)
        assert ttft_s("") == pytest.approx(before[0], rel=0.5)
        assert ttft_s("small") > 3 * before[1], "the whole conversation is new to it"
        later = await follow_up(engine, prompt, answer, "And then?")
        await ask(engine, a, later, max_tokens=200, model="small")
        assert ttft_s("") > 3 * before[0], "now it is the model that has to catch up"


async def test_who_was_let_in_is_expected_where_it_goes() -> None:
    engine = make_brownout_engine(SimulatedEngine(LARGE), lambda _: SimulatedEngine(SMALL))
    async with alone(engine):
        engine.expect(TenantId("t"), ResponseId("r1"), "small")
        found = [engine.forecast(key("a"), Share(), 10, model) for model in ("", "small")]
        assert [each.position for each in found if each is not None] == [0, 2]


# -- together --------------------------------------------------------------------------------------------------------


@pytest.mark.model
async def test_together_they_hold_no_more_of_a_tenants_kv_than_it_may(
    model_path: Path, smaller_model_path: Path
) -> None:
    options = LlamaOptions(model_path=model_path, slots=2, context_window=WINDOW, spill_tokens_min=16)
    engine = make_brownout_engine(
        LlamaEngine(options), lambda info: LlamaEngine(options.smaller(smaller_model_path, 2, 1, info.context_window))
    )
    async with alone(engine):
        assert isinstance(engine, HoldsKV)
        tenant, small = TenantId("t"), engine.info.smaller_model
        prompt = await prompt_of(engine, STORY)
        await ask(engine, key("a"), prompt, max_tokens=4)
        own = engine.holdings.bytes_of(tenant)
        await ask(engine, key("a"), prompt, max_tokens=4, model=small)
        both = engine.holdings.bytes_of(tenant)
        assert both > own > 0
        engine.holdings.ceiling = lambda _: both
        await ask(engine, key("b"), prompt, max_tokens=4, model=small)
        await until(lambda: engine.holdings.bytes_of(tenant) <= both)
        assert engine.place(key("a")).tokens, "the smaller one made room among its own"


# -- pairs that are refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"weights": 0}, "is the same model"),
        ({"model": "large"}, "has the same name"),
        ({"context_window": 512}, "takes 512 tokens of context and the model 1024. Start with --context 512"),
    ],
)
async def test_a_pair_that_does_not_go_together_is_refused_and_both_are_closed(
    changed: dict[str, Any], says: str
) -> None:
    main, smaller = SimulatedEngine(LARGE), SimulatedEngine(msgspec.structs.replace(SMALL, **changed))
    engine = make_brownout_engine(main, lambda _: smaller)
    with pytest.raises(BadInput) as refused:
        await engine.start()
    assert refused.value.code == "bad_brownout_model" and refused.value.param == "brownout_model"
    assert "'large'" in refused.value.public_message and says in refused.value.public_message
    for each in (main, smaller):
        assert not await _serves(each)
    await engine.close()


class NoRoom(SimulatedEngine):
    async def start(self) -> None:
        raise Unavailable("model_not_loaded", "Its weights need more memory.")


async def test_a_smaller_model_that_does_not_start_is_named_and_the_model_closed() -> None:
    main = SimulatedEngine(LARGE)
    engine = make_brownout_engine(main, lambda _: NoRoom(SMALL))
    with pytest.raises(Unavailable) as refused:
        await engine.start()
    assert refused.value.code == "model_not_loaded"
    assert refused.value.public_message == "The model for brownout cannot be used. Its weights need more memory."
    assert not await _serves(main)


async def _serves(engine: Engine) -> bool:
    try:
        return bool((await ask(engine, key("x"), (1, 2, 3), max_tokens=1)).tokens)
    except Exception:  # noqa: BLE001 - any refusal will do
        return False
