"""The simulated engine's own promises: its clock, its batching cost, its language and its memory."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from inference.simulated import SimulatedEngine, SimulatedOptions
from inference.tokens import as_tokens
from sessions.model.errors import SessileError, Unavailable
from sessions.model.generation import Chunk, Finish
from tests.support.engines.engines import ask, collect, key, open_stream, request
from tests.support.virtual_time import virtual

PROMPT = (256, 260, 300, 301, 257, 261)


async def started(**options: object) -> SimulatedEngine:
    engine = SimulatedEngine(SimulatedOptions(**({"answer_tokens_mean": 0} | options)))  # type: ignore[arg-type]
    await engine.start()
    return engine


def now() -> float:
    return asyncio.get_running_loop().time()


# -- the clock -------------------------------------------------------------------------------------


@virtual
async def test_prefill_takes_its_time_and_lets_others_decode_between_its_chunks() -> None:
    engine = await started(step_base_s=0.01, prefill_tokens_per_s=1000.0, prefill_chunk_tokens=100, context_window=4096)
    steady = await open_stream(engine, key("steady"), PROMPT)
    arrivals: list[float] = []

    async def watch() -> None:
        async for _ in steady.stream:
            arrivals.append(now())

    watching = asyncio.create_task(watch())
    begun = now()
    long = tuple(as_tokens(range(1000, 1800)))
    answer = await ask(engine, key("long"), long, max_tokens=1)
    assert now() - begun == pytest.approx(0.8 + 8 * 0.01, abs=0.03)
    during = [at for at in arrivals if at > begun]
    assert len(during) >= 7
    assert max(b - a for a, b in itertools.pairwise(during)) <= 0.12
    assert answer.finish.cached_tokens == 0
    watching.cancel()


@virtual
async def test_answers_end_by_themselves_about_where_they_should() -> None:
    engine = await started(answer_tokens_mean=40)
    lengths = []
    for number in range(60):
        answer = await ask(engine, key("a"), (*PROMPT[:-1], 300 + number, 257, 261), max_tokens=1000)
        assert answer.finish.reason == "stop"
        lengths.append(len(answer.tokens))
    assert min(lengths) >= 20 and max(lengths) <= 60
    assert 34 <= sum(lengths) / len(lengths) <= 46


@virtual
async def test_sessions_push_each_other_out_when_room_ends() -> None:
    engine = await started(kv_tokens_max=1024, context_window=1024)
    for name in "abc":
        await ask(engine, key(name), tuple(range(1000, 1400)), max_tokens=2)
    assert engine.place(key("a")).tier == "none"
    assert engine.place(key("c")).tokens == 401
    assert engine.stats().counters["evictions"] == 1


# -- made to misbehave ---------------------------------------------------------------------------------


@virtual
async def test_a_crash_ends_every_stream_with_its_error() -> None:
    engine = await started(slots=1)
    stream = await open_stream(engine, key("a"), PROMPT)
    waiter = asyncio.create_task(ask(engine, key("b"), PROMPT))
    await asyncio.sleep(0)
    engine.crash(Unavailable("engine_unavailable", "gone"))
    with pytest.raises(Unavailable):
        await stream.drain()
    with pytest.raises(Unavailable):
        await waiter
    with pytest.raises(Unavailable):
        await ask(engine, key("c"), PROMPT)
    assert engine.stats().running == engine.stats().waiting == 0


@virtual
async def test_a_reader_that_lags_stops_its_stream_and_nobody_else() -> None:
    engine = await started(unread_chunks_max=10, step_base_s=0.01)
    lazy = await open_stream(engine, key("lazy"), PROMPT)
    await ask(engine, key("eager"), PROMPT, max_tokens=100)
    assert engine.stats().counters["decoded_tokens"] <= 100 + 12
    rest = [item async for item in lazy.stream]
    assert isinstance(rest[-1], Finish)
    assert 1 + sum(isinstance(item, Chunk) for item in rest) == 900


@virtual
async def test_errors_are_the_ports() -> None:
    engine = await started()
    with pytest.raises(SessileError):
        await collect(engine.generate(request(key("a"), tuple(range(9000)))))
