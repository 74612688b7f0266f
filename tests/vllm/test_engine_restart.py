"""vLLM's own processes die: turns are told to come back, vLLM is started again or a standby takes over, and sessions
are found in memory as they were, with what the dead one had written of its answers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from vllm.v1.engine.exceptions import EngineDeadError

from inference.vllm.async_llm import VllmCore
from inference.vllm.engine import VllmEngine
from inference.vllm.sampling import prefill_params
from sessions.model.errors import EngineLost, Unavailable
from sessions.model.generation import Chunk
from testbed.engine_client import Opened, ask, follow_up, key, open_stream, prompt_of, request, until
from tests.support.engines.dying_connector import PHASES, SAVE, DyingCore
from tests.support.engines.engines import AlwaysRestores
from tests.support.engines.vllm_world import BLOCK_TOKENS, VllmWorld, offload_of, settled, start, vllm_options

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]


def process_of(engine: VllmEngine) -> int:
    assert engine._core._llm is not None
    (process,) = engine._core._llm.engine_core.resources.engine_manager.processes
    return int(process.pid)


async def killed(engine: VllmEngine) -> None:
    os.kill(process_of(engine), signal.SIGKILL)


# Run by Python in each process before anything else. (vLLM's names its process, which overwrites what /proc has of it.)
NOTES_ENVIRONMENT = """
import os, pathlib
pathlib.Path(__file__).with_name(f"{os.getpid()}.names").write_text(" ".join(os.environ))
"""


async def test_a_vllm_that_is_killed_is_started_again_and_finds_its_sessions(
    world: VllmWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inherited() -> set[str]:
        return set((tmp_path / f"{process_of(engine)}.names").read_text().split())

    (tmp_path / "sitecustomize.py").write_text(NOTES_ENVIRONMENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SESSILE_API_KEY", "secret")
    options = vllm_options(world.folder, staging_folder=world.staging)
    engine = VllmEngine(options, core=VllmCore(options, os.environ))  # a core of its own, which nobody lends on
    world._engines.append(engine)
    await engine.start()
    assert inherited() >= {"PATH", "VLLM_HOST_IP"} and "SESSILE_API_KEY" not in inherited()
    first = await prompt_of(engine, "Tell me a story about a bird that could not fly, and about its friends.")
    answer = await ask(engine, key("a"), first, max_tokens=40)
    await ask(engine, key("z"), first, max_tokens=4)
    await settled(engine)
    stored = set((world.folder / "kv").iterdir())
    stream = await open_stream(engine, key("b"), first)
    await killed(engine)
    with pytest.raises(EngineLost):
        await stream.drain()
    assert "started again" in (engine.stats().away or "")
    waiting = asyncio.create_task(ask(engine, key("b"), first, max_tokens=4))  # that asks again, as its session does
    await until(lambda: engine._core._llm is None)
    await engine.release(key("z"))  # deleted while there is no vLLM
    await engine._supervisor.restarted()
    assert "SESSILE_API_KEY" not in inherited()
    assert os.environ["SESSILE_API_KEY"] == "secret"
    assert engine.place(key("z")).tier == "none" and len(stored & set((world.folder / "kv").iterdir())) == 1
    assert engine.place(key("a")).tier == "host"
    assert len((await waiting).tokens) == 4 and engine.stats().away is None
    later = await follow_up(engine, first, answer, "What became of them?")
    again = await ask(engine, key("a"), later, max_tokens=8)
    assert again.finish.cached_tokens == world.whole(len(first) + 39)
    assert again.tokens == (await ask(engine, key("c"), later, max_tokens=8)).tokens
    await killed(engine)  # with nobody there to hear it
    await until(lambda: engine._supervisor.restarting)
    await engine._supervisor.restarted()
    assert len((await ask(engine, key("a"), later, max_tokens=8)).tokens) == 8


async def read_on(stream: Opened, tokens: list[int], enough: int) -> None:
    async for item in stream.stream:
        assert isinstance(item, Chunk)
        tokens.extend(item.tokens)
        if len(tokens) >= enough:
            return


@pytest.mark.parametrize("standby", [True, False])
async def test_an_answer_goes_on_from_what_the_dead_vllm_had_written(world: VllmWorld, standby: bool) -> None:
    options = vllm_options(world.folder, staging_folder=world.staging, standby=standby)
    engine = VllmEngine(options, core=VllmCore(options), cost=AlwaysRestores())
    world._engines.append(engine)
    await engine.start()
    prompt = await prompt_of(engine, "Tell me a story about a bird that could not fly, and its friends. " * 6)
    whole = await ask(engine, key("whole"), prompt, max_tokens=120)
    first, tokens, known = engine._core, list[int](), 0
    for number in range(2 if standby else 1):
        if standby:
            await until(lambda: engine._standby is not None and engine._standby.is_ready, 120)
        stream = await open_stream(engine, key("a"), (*prompt, *tokens))
        assert stream.first.cached_tokens == min(known, world.whole(len(prompt) + len(tokens) - 1))
        tokens.extend(stream.first.tokens)
        await read_on(stream, tokens, 40 * (number + 1))
        (run,) = engine._runs.values()
        written = (len(prompt) + len(tokens) - 1) // BLOCK_TOKENS
        await until(lambda: run.plan is not None and run.plan.written[0] >= written)  # noqa: B023
        await killed(engine)
        with pytest.raises(EngineLost):
            await read_on(stream, tokens, 900)
        assert (engine.stats().away is None) is standby, "nobody need go elsewhere"
        await engine._supervisor.restarted()
        assert (engine._core is first) is not standby
        known = engine.place(key("a")).tokens
        assert written * BLOCK_TOKENS <= known <= world.whole(len(prompt) + len(tokens))
        assert engine.stats().counters["blocks_adopted"] >= written, "in all"
    goes_on = await ask(engine, key("a"), (*prompt, *tokens), max_tokens=120 - len(tokens))
    assert goes_on.finish.cached_tokens == min(known, world.whole(len(prompt) + len(tokens) - 1))
    assert (*tokens, *goes_on.tokens) == whole.tokens
    await settled(engine)


@pytest.mark.parametrize("phase", PHASES)
async def test_what_a_worker_had_saved_when_it_died_within_a_save_is_adopted(
    world: VllmWorld, tmp_path: Path, phase: str
) -> None:
    options = vllm_options(world.folder, staging_folder=world.staging)
    engine = VllmEngine(options, core=DyingCore(options, tmp_path / "phase", phase), cost=AlwaysRestores())
    world._engines.append(engine)
    await engine.start()
    prompt, tokens = await prompt_of(engine, "Tell me a story about a bird that could not fly."), list[int]()
    with contextlib.suppress(EngineLost):  # the end of a file is told behind the answer's
        async for item in engine.generate(request(key("a"), prompt, max_tokens=200)):
            if isinstance(item, Chunk):
                tokens.extend(item.tokens)
    await until(lambda: engine._supervisor._restarting is not None)
    await engine._supervisor.restarted()
    known = engine.place(key("a")).tokens
    whole = world.whole(len(prompt) + len(tokens) - 1)
    assert known == whole if phase == "end not told" else (SAVE - 1) * BLOCK_TOKENS <= known <= whole
    goes_on = await ask(engine, key("a"), (*prompt, *tokens), max_tokens=240 - len(tokens))
    assert goes_on.finish.cached_tokens == min(known, world.whole(len(prompt) + len(tokens) - 1))
    unbroken = await ask(engine, key("b"), prompt, max_tokens=240)
    assert (*tokens, *goes_on.tokens) == unbroken.tokens
    await settled(engine)


async def test_no_save_is_lost_to_a_worker_that_is_slower_than_every_wait(world: VllmWorld) -> None:
    """Files are closed with the step after an answer's last, here with another session's long prompt."""
    engine = await start(world)
    offload_of(engine)._close_wait_s = 0.0
    first = await prompt_of(engine, "Tell me a story about a bird that could not fly.")
    cold = await prompt_of(engine, "A river, a hill and the birds that lived on them. " * 60)
    for number in range(4):
        beside = asyncio.create_task(ask(engine, key(f"cold-{number}"), cold[number:], max_tokens=2))
        answer = await ask(engine, key(f"{number}"), first[number:], max_tokens=40 + number)
        after = await follow_up(engine, first[number:], answer, "And then?")
        again = await ask(engine, key(f"{number}"), after, max_tokens=8)
        assert again.finish.cached_tokens >= world.whole(len(first) - number + len(answer.tokens) - 1)
        await beside
    await offload_of(engine).completed()
    counters = engine.stats().counters
    assert not {name for name in counters if name.startswith("saves_")} - {"saves_late"}
    await settled(engine)


async def test_an_engine_that_is_closed_while_vllm_starts_again_is_closed(world: VllmWorld) -> None:
    engine = world.make()
    world._engines.append(engine)
    await engine.start()
    engine._core.dead = True
    engine._supervisor.mark_dead()
    await engine.close()
    with pytest.raises(Unavailable) as refused:
        await ask(engine, key("a"), (1, 2, 3))
    assert "closed" in refused.value.public_message


class Dies:
    """In place of vLLM's front half: says one word, and then that it is dead."""

    async def generate(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        said = SimpleNamespace(token_ids=[7], text="a", finish_reason=None, stop_reason=None, logprobs=None)
        yield SimpleNamespace(num_cached_tokens=0, outputs=[said])
        raise EngineDeadError


@pytest.mark.parametrize("begun_again", [False, True])
async def test_whoever_hears_late_of_a_death_does_not_end_the_next_vllm(tmp_path: Path, begun_again: bool) -> None:
    core = VllmCore(vllm_options(tmp_path))
    core._llm = cast(Any, Dies())
    run = core.run("r", [1, 2], "", prefill_params({}), 0)
    await anext(run)
    if begun_again:
        core._llm = cast(Any, Dies())
    with pytest.raises(EngineLost):
        await anext(run)
    assert core.dead is not begun_again
