"""`serve --engine remote`: an answer whose engine dies in the middle goes on at another address, with equal tokens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.doors.server_process import ServerProcess
from tests.support.engines.engines import LlamaWorld
from tests.support.engines.relay import Relay

QUESTION = "Tell a long story about a river, a bridge and a town."


@pytest.mark.slow
@pytest.mark.model
async def test_an_answer_outlives_its_engine(tmp_path: Path, model_path: Path) -> None:
    world = LlamaWorld(tmp_path / "engine", model_path)
    own: Any = await world.engine()
    async with Relay(own.socket_path) as one, Relay(own.socket_path) as other:
        flags = ("--engine", "remote", "--engine-url", f"{one.url},{other.url}", "--model", str(model_path))
        server = ServerProcess(*flags, data=str(tmp_path / "data"))
        await asyncio.to_thread(server.start)  # the relays run on this loop
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}/v1", timeout=120) as http:
                model = (await http.get("/models")).json()["data"][0]["id"]
                body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
                body["max_tokens"] = 80
                whole = (await http.post("/chat/completions", json=body)).json()["choices"][0]
                text, cut, finish = "", False, None
                async with http.stream("POST", "/chat/completions", json={**body, "stream": True}) as stream:
                    async for line in stream.aiter_lines():
                        if not line.startswith("data: {"):
                            continue
                        chunk = json.loads(line.removeprefix("data: "))
                        choice = chunk["choices"][0]
                        text += choice["delta"].get("content") or ""
                        finish = choice["finish_reason"] or finish
                        if len(text) > 20 and not cut:
                            cut = True
                            (its,) = (each for each in (one, other) if each.streams)
                            await its.cut()
                assert cut and (text, finish) == (whole["message"]["content"], whole["finish_reason"])
        finally:
            await asyncio.to_thread(server.stop)
    await world.close()
