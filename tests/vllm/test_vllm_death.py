"""vLLM's own processes die: turns are told to come back, vLLM is started again, and sessions are found on disk."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from vllm.v1.engine.exceptions import EngineDeadError

from inference.vllm import engine as engine_module
from inference.vllm.core import VllmCore
from inference.vllm.engine import VllmEngine
from inference.vllm.sampling import prefill_params
from sessions.errors import Unavailable
from tests.contract.engines import ask, follow_up, key, open_stream, prompt_of, until
from tests.contract.vllm_world import VllmWorld, settled, vllm_options

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]


async def test_a_vllm_that_is_killed_is_started_again_and_finds_its_sessions(world: VllmWorld) -> None:
    options = vllm_options(world.folder, staging_folder=world.staging)
    engine = VllmEngine(options, core=VllmCore(options))  # a core of its own, which nobody lends on
    world._engines.append(engine)
    await engine.start()
    first = await prompt_of(engine, "Tell me a story about a bird that could not fly, and about its friends.")
    answer = await ask(engine, key("a"), first, max_tokens=40)
    await ask(engine, key("z"), first, max_tokens=4)
    await settled(engine)
    stored = set((world.folder / "kv").iterdir())
    stream = await open_stream(engine, key("b"), first)
    (process,) = engine._core._llm.engine_core.resources.engine_manager.processes
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(Unavailable) as told:
        await stream.drain()
    assert told.value.retryable
    with pytest.raises(Unavailable) as refused:
        await ask(engine, key("a"), first)
    assert "started again" in refused.value.public_message
    assert engine.stats().running == 0
    await until(lambda: engine._spill is None)
    await engine.release(key("z"))  # deleted while nothing stands between it and the disk
    await engine._beginning_again
    assert engine.place(key("z")).tier == "none" and len(stored & set((world.folder / "kv").iterdir())) == 1
    assert engine.place(key("a")).tier == "disk"
    later = await follow_up(engine, first, answer, "What became of them?")
    again = await ask(engine, key("a"), later, max_tokens=8)
    assert again.finish.cached_tokens == world.whole(len(first) + 39)
    assert again.tokens == (await ask(engine, key("c"), later, max_tokens=8)).tokens


async def test_an_engine_that_is_closed_while_vllm_starts_again_is_closed(world: VllmWorld) -> None:
    engine = world.make()
    world._engines.append(engine)
    await engine.start()
    engine._core.dead = True
    engine._died()
    await engine.close()
    with pytest.raises(Unavailable) as refused:
        await ask(engine, key("a"), (1, 2, 3))
    assert "closed" in refused.value.public_message


class Refusing(VllmEngine):
    """Its vLLM does not start for some times, and then does."""

    refusals = 0

    async def _start_core(self, *_: Any) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("engine_unavailable", "Not now.")


async def test_it_is_tried_again_until_vllm_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_AGAIN_S", (0.0, 0.0))
    options = vllm_options(tmp_path)
    engine = Refusing(options, core=VllmCore(options))
    engine._model, engine._info, engine._gone = cast(Any, None), cast(Any, SimpleNamespace(context_window=256)), None
    engine.refusals = 5
    engine._died()
    assert engine._beginning_again is not None
    await engine._beginning_again
    assert engine._gone is None and engine.refusals == 0
    engine.refusals = 1 << 30
    engine._died()
    await until(lambda: engine.refusals < (1 << 30) - 5)
    await engine.close()
    assert engine._beginning_again.done()


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
    with pytest.raises(Unavailable):
        await anext(run)
    assert core.dead is not begun_again
