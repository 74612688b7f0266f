"""The simulated engine's own promises: its clock, its batching cost, its language and its memory."""

from __future__ import annotations

import asyncio

import pytest

from inference.simulated import SimulatedEngine, SimulatedOptions
from sessions.model.errors import Unavailable
from sessions.model.generation import Chunk, Finish
from tests.support.engines.engines import ask, key, open_stream
from tests.support.virtual_time import virtual

PROMPT = (256, 260, 300, 301, 257, 261)


async def started(**options: object) -> SimulatedEngine:
    engine = SimulatedEngine(SimulatedOptions(**({"answer_tokens_mean": 0} | options)))  # type: ignore[arg-type]
    await engine.start()
    return engine


# -- the clock -------------------------------------------------------------------------------------


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
