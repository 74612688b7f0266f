"""Servers of tiny models with every kind of tokenizer, killed in the middle of an answer and started again on the same
data: the text is as the log says, and the next turn computes no more than what stands behind the first difference."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from testbed.server_process import ServerProcess
from testbed.wire_client import connected
from tests.support.engines.chat_templates import FAMILIES, SPECIALS
from tests.support.engines.tiny_models import HEAD, KINDS, REWRITTEN, TEMPLATES, write_tiny_model

pytestmark = [pytest.mark.model, pytest.mark.slow]

LONG, SHORT = 6_000, 8  # tokens of an answer: one that is surely being written when the server dies
DELTAS = ("response.output_text.delta", "response.reasoning_text.delta")
SHOWN = 8  # events of an answer before the server is killed


@pytest.mark.parametrize("kind", KINDS)
async def test_a_killed_server_goes_on_as_its_log_says(kind: str, tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    write_tiny_model(model, kind, FAMILIES[TEMPLATES.get(kind, "chatml")], SPECIALS)
    flags = ("--engine", "llama", "--model", str(model), "--threads", "1", "--slots", "2", "--context", "8192")
    server = ServerProcess(*flags, data=str(tmp_path / "data"))
    await asyncio.to_thread(server.start)
    try:
        async with connected(server.url) as wire:
            session = await wire.create(temperature=0)
            shown = await turn(wire, session, "where does the river go ü 日本?", SHORT)
            begun = await wire.command("message.create", session=session, content="and it?", max_output_tokens=LONG)
            for _ in range(SHOWN):
                shown.append(await wire.events.get())
            await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with connected(server.url) as wire:
            await wire.command("subscribe", session=session, offset=0)
            told = await wire.until_end(begun["response_id"])
            assert deltas(told).startswith(deltas(shown)) and deltas(shown), "what was shown is in the log"
            answer = told[-1]["event"]["response"]
            assert (answer["usage"]["output_tokens"], answer["status"]) == (LONG, "incomplete")
            parts = [part for item in answer["output"] for part in item["content"]]
            said = [part.get("text") or part["reasoning"] for part in parts]
            assert deltas(told).endswith("".join(said))
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
                (line,) = re.findall(
                    r"^sessile_recomputed_tokens_total(?:{.*})? (\S+)$", (await http.get("/metrics")).text, re.M
                )
            assert 0 < float(line) < answer["usage"]["input_tokens"] + LONG, "the second server wrote a part of it"
            frames = await turn(wire, session, "and where?", SHORT)
            usage = frames[-1]["event"]["response"]["usage"]
    finally:
        await asyncio.to_thread(server.stop)
    before = answer["usage"]["input_tokens"] + (0 if kind in REWRITTEN else LONG - HEAD)
    assert usage["input_tokens_details"]["cached_tokens"] >= before - HEAD


def deltas(frames: list[dict[str, Any]]) -> str:
    """Returns the texts and thoughts of all answers."""
    events = (frame["event"] for frame in frames)
    return "".join(event["delta"] for event in events if event["type"] in DELTAS)


async def turn(wire: Any, session: str, text: str, tokens: int) -> list[dict[str, Any]]:
    """Asks, and returns the events up to the end of the answer."""
    begun = await wire.command("message.create", session=session, content=text, max_output_tokens=tokens)
    return list(await wire.until_end(begun["response_id"]))
