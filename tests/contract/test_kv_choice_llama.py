"""Restore or recompute through llama.cpp: a disk that stalls costs a look, and the answer is computed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from inference.kv.disk import ProgressReader
from inference.llama import LlamaEngine, LlamaOptions
from testbed.engine_client import ask, follow_up, key, prompt_of
from tests.support.engines.engines import SLOTS, WINDOW

pytestmark = [pytest.mark.model, pytest.mark.slow]


class Stuck(ProgressReader):
    """A file of which the first piece comes, and then nothing until it is let go."""

    go = threading.Event()

    def readinto(self, buffer: memoryview, /) -> int:
        done = super().readinto(buffer)
        self.go.wait(60)
        return done


async def started(model_path: Path, folder: Path) -> LlamaEngine:
    options = LlamaOptions(
        model_path=model_path,
        slots=SLOTS,
        context_window=WINDOW,
        spill_tokens_min=16,
        disk_folder=folder / "kv",
        staging_folder=folder / "staging",
    )
    engine = LlamaEngine(options)
    await engine.start()
    return engine


async def test_a_disk_that_stalls_is_not_waited_for(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine knows from its start what computing takes, though it has served nobody yet."""
    engine = await started(model_path, tmp_path)
    prompt = await prompt_of(engine, "Tell me a story about a bird that could not fly, and about its friends. " * 8)
    first = await ask(engine, key("a"), prompt, max_tokens=5)
    later = await follow_up(engine, prompt, first, "Go on.")
    await engine.close()

    engine = await started(model_path, tmp_path)
    assert engine.place(key("a")).tier == "disk" and engine.stats().gauges["prefill_tokens_per_s"] > 0
    monkeypatch.setattr("inference.kv.disk.ProgressReader", Stuck)
    answer = await ask(engine, key("a"), later, max_tokens=5)
    Stuck.go.set()
    assert answer.finish.cached_tokens == 0 and answer.tokens
    counters = engine.stats().counters
    assert (counters["restores"], counters["restores_declined"], counters["refused_too_slow"]) == (0, 1, 1)
    await engine.close()
