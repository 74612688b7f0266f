"""Turns beside hints, over a vLLM that computes when a test says so: no process is started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inference.vllm.async_llm import RunEnded, VllmCore
from inference.vllm.engine import VllmEngine
from inference.vllm.offload import KvOffload
from sessions.model.errors import EngineLost
from sessions.model.generation import Chunk, EngineInfo
from testbed.engine_client import ask, key
from tests.support.engines.kv import make_tiers
from tests.support.engines.vllm_world import BLOCK_TOKENS, vllm_options
from tests.support.virtual_time import settled, virtual

pytestmark = pytest.mark.vllm

PROMPT = tuple(range(3 * BLOCK_TOKENS))
LATER = (*PROMPT, *range(900, 900 + BLOCK_TOKENS))
EDITED = (*PROMPT[:10], *range(500, 600))


class Sent:
    def __init__(self, prompt: list[int], priority: int) -> None:
        self.prompt = prompt
        self.priority = priority
        self.goes_on = asyncio.Event()


class Core:
    """In place of vLLM: each run waits until it may go on, and then is one token."""

    dead = is_dead = has_own_scheduler = False

    def __init__(self) -> None:
        self.sent: list[Sent] = []

    async def run(
        self, name: str, prompt: list[int], salt: str, params: Any, priority: int, images: Sequence[Any]
    ) -> AsyncGenerator[Chunk | RunEnded, None]:
        sent = Sent(prompt, priority)
        self.sent.append(sent)
        await sent.goes_on.wait()
        if self.dead:
            raise EngineLost("engine_lost", "The model's engine has died.")
        yield Chunk((5,), "x")
        yield RunEnded("length", 0)


class Ground:
    def __init__(self, folder: Path, *, device_blocks: int = 100) -> None:
        self.core = Core()
        self.engine = engine = VllmEngine(vllm_options(folder), core=cast(VllmCore, self.core))
        engine._info = EngineInfo(
            model="m", build="b", model_fingerprint="f", context_window=1024, slots=2, sampling=frozenset()
        )
        engine._tokenizer = cast(Any, SimpleNamespace(vocabulary_size=1000, shows_specials=False))
        self.tiers = make_tiers(folder, 1 << 20)
        engine._offload = KvOffload(
            self.tiers, block_tokens=BLOCK_TOKENS, block_bytes=64, ranks=1, answer_tokens=16, saves=False
        )
        engine._block_usage = engine._new_block_usage(device_tokens=device_blocks * BLOCK_TOKENS)
        engine._supervisor.unavailable = None

    @property
    def sent(self) -> list[Sent]:
        return self.core.sent

    async def held(self, name: str) -> None:
        """Gives a session blocks on the device."""
        turn = asyncio.ensure_future(ask(self.engine, key(name), PROMPT, max_tokens=1))
        await settled()
        self.sent[-1].goes_on.set()
        await turn


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@virtual
async def test_a_turn_waits_for_the_hint_ahead_of_it(folder: Path) -> None:
    ground = Ground(folder)
    hint = asyncio.ensure_future(ground.engine.warm(key("a"), PROMPT))
    await settled()
    assert not await ground.engine.warm(key("a"), PROMPT), "one is under way"
    turn = asyncio.ensure_future(ask(ground.engine, key("a"), LATER, max_tokens=1))
    await settled()
    assert len(ground.sent) == 1
    ground.sent[0].goes_on.set()
    assert await hint
    await settled()
    ground.sent[1].goes_on.set()
    await turn
    assert ground.engine.stats().running == 0


@virtual
async def test_a_hint_that_dies_with_vllm_or_is_cancelled_keeps_no_turn_waiting(folder: Path) -> None:
    ground = Ground(folder)
    ground.core.dead = True
    ground.engine._supervisor.mark_dead = lambda: None  # type: ignore[method-assign]
    hint = asyncio.ensure_future(ground.engine.warm(key("a"), PROMPT))
    await settled()
    turn = asyncio.ensure_future(ask(ground.engine, key("a"), PROMPT, max_tokens=1))
    await settled()
    ground.sent[0].goes_on.set()
    assert not await hint
    ground.core.dead = False
    await settled()
    ground.sent[1].goes_on.set()
    await turn
    hint = asyncio.ensure_future(ground.engine.warm(key("a"), LATER))
    await settled()
    turn = asyncio.ensure_future(ask(ground.engine, key("a"), LATER, max_tokens=1))
    await settled()
    hint.cancel()
    await settled()
    ground.sent[-1].goes_on.set()
    await turn
    assert ground.engine.stats().running == 0


@virtual
async def test_a_hint_takes_no_room_of_who_waits_for_tools_and_is_expected_sooner(folder: Path) -> None:
    ground = Ground(folder, device_blocks=8)
    for name in "ab":
        await ground.held(name)
        ground.engine.tools_called(key(name), ["look_up"])
    assert not await ground.engine.warm(key("c"), PROMPT)
    assert len(ground.sent) == 2
    ground.tiers.returns.forget(key("a"))
    ground.tiers.returns.forget(key("b"))
    hint = asyncio.ensure_future(ground.engine.warm(key("c"), PROMPT))
    await settled()
    ground.sent[-1].goes_on.set()
    assert await hint, "nobody is expected"
