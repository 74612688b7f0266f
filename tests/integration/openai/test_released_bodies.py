"""A request's parsed body is freed when its turn has begun, and does not stay until its answer has been written."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from inference.simulated.engine import SimulatedStream
from tests.support.doors.openai_server import SIMULATED, Serving

WORDS = "hello to whoever keeps this"
PARTS = [{"type": "text", "text": WORDS}] * 3
DOORS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": PARTS}]}),
    ("/v1/completions", {"prompt": [WORDS, "another prompt"], "max_tokens": 9_999}),
    ("/v1/messages", {"messages": [{"role": "user", "content": PARTS}], "max_tokens": 9_999}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": WORDS}] * 3}]}),
]


def models_with(words: str) -> list[BaseModel]:
    """The models that hold these words themselves, or in one of their lists."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, BaseModel) and words in repr(vars(each))]


@pytest.mark.parametrize(("path", "body"), DOORS)
async def test_a_body_is_freed_while_its_answer_is_written(
    server: Serving, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    server.engine.script.append("word " * 10_000)
    draw, drawn = server.engine.draw, asyncio.Event()

    def drawing(run: SimulatedStream) -> int | None:
        drawn.set()
        return draw(run)

    monkeypatch.setattr(server.engine, "draw", drawing)
    request = asyncio.create_task(http.post(path, json={"model": SIMULATED, **body}))
    await drawn.wait()
    held = [weakref.ref(each) for each in models_with(WORDS)]
    while any(each() is not None for each in held):
        drawn.clear()
        await drawn.wait()
    assert not models_with(WORDS)
    assert not request.done() and server.engine.prompts
    request.cancel()
    await asyncio.wait((request,))
