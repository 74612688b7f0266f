"""The simulated engine's own promises: its clock, its language and its memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.simulated import SimulatedEngine, SimulatedOptions, SimulatedTokenizer
from inference.simulated.kv import SEQUENCES_MAX, DeviceMemory
from inference.simulated.tokenizer import _PIECE_BEGIN, _encode
from inference.simulated.vocabulary import TOKEN_BYTES, hash_token, hash_tokens, next_token
from inference.tokens import as_tokens
from sessions.model.errors import Unavailable
from sessions.model.generation import Chunk, Finish
from testbed.engine_client import ask, key, open_stream
from tests.support.virtual_time import virtual

# -- engine
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


# -- kv
operations = st.lists(
    st.tuples(
        st.sampled_from(["put", "take", "erase", "park", "shrink"]),
        st.sampled_from(["a", "b", "c"]),
        st.lists(st.integers(0, 2), max_size=12),
    ),
    max_size=60,
)


@given(operations)
def test_device_memory_is_bounded_and_never_invents_a_prefix(steps: list[tuple[str, str, list[int]]]) -> None:
    memory = DeviceMemory(30)
    put: dict[str, list[list[int]]] = {}
    for what, name, values in steps:
        sequence = as_tokens(values)
        match what:
            case "put":
                memory.put(key(name), sequence)
                put.setdefault(name, []).append(values)
            case "take":
                held = memory.take(key(name), sequence)
                assert any(values[:held] == known[:held] for known in put.get(name, [])) or held == 0
            case "erase":
                memory.erase(key(name))
                put.pop(name, None)
                assert memory.longest(key(name)) is None
            case "park":
                memory.park(key(name))
            case "shrink":
                memory.shrink_to(10)
                assert memory.tokens <= 10
        assert 0 <= memory.tokens <= 30
    for name in put:
        memory.erase(key(name))
    assert memory.tokens == 0


def test_short_sequences_are_bounded_in_number_and_the_oldest_goes() -> None:
    memory = DeviceMemory(10 * SEQUENCES_MAX)
    for number in range(SEQUENCES_MAX + 1):
        memory.put(key(str(number)), as_tokens([1]))
    assert len(memory.sessions) == memory.tokens == SEQUENCES_MAX and key("0") not in memory.sessions


def test_a_run_takes_what_other_sessions_of_its_scope_hold_and_leaves_it_there() -> None:
    memory = DeviceMemory(100)
    memory.put(key("a"), as_tokens([1, 2, 3]), b"mine")
    memory.put(key("b"), as_tokens([1, 2, 3, 4]), b"another's")
    memory.put(key("c"), as_tokens([1, 2, 3, 4]))
    prompt = as_tokens([1, 2, 3, 4, 5])
    for scope, held in ((b"mine", 3), (b"another's", 4), (b"", 0), (b"nobody's", 0)):
        assert memory.take(key("new"), prompt, scope) == held
    memory.erase(key("a"))
    assert memory.take(key("new"), prompt, b"mine") == 0


# -- tokenizer
@settings(max_examples=30, deadline=None)
@given(st.text(" ab.é", max_size=200))
def test_a_long_text_is_encoded_in_parts_to_the_same_tokens(text: str) -> None:
    async def encoded() -> tuple[Sequence[int], int]:
        turns, done = 0, asyncio.Event()

        async def count() -> None:
            nonlocal turns
            while not done.is_set():
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        tokens = await SimulatedTokenizer().text(text * 1_000)
        done.set()
        await counting
        return tokens, turns

    tokens, turns = asyncio.run(encoded())
    assert list(tokens) == _encode(text * 1_000)
    assert turns >= len(text) * 1_000 // 40_000 or _PIECE_BEGIN.search(text * 2) is None


# -- vocabulary
@given(st.lists(st.integers(0, len(TOKEN_BYTES) - 1)), st.integers(0, len(TOKEN_BYTES) - 1))
def test_the_hash_continues(tokens: list[int], one: int) -> None:
    assert hash_token(one, hash_tokens(as_tokens(tokens))) == hash_tokens(as_tokens([*tokens, one]))


def test_every_draw_is_a_token_with_text_or_a_beginning_of_a_character() -> None:
    state = 0
    for last in (261, 32, 10, 46, 500, 0xA9):
        for _ in range(3000):
            token = next_token(state, 0, last, b"")
            assert TOKEN_BYTES[token]
            state = hash_token(token, state)
