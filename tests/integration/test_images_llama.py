"""A server with a tiny model that sees: chat with an image over HTTP, and a kill in the middle of an answer."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from testbed.server_process import ServerProcess
from testbed.wire_client import connected
from tests.support.doors.image_turns import sees, three_turns, url_of
from tests.support.engines.chat_templates import FAMILIES, SPECIALS
from tests.support.engines.tiny_models import write_tiny_model
from tests.support.engines.tiny_projector import ROW, write_tiny_projector

pytestmark = pytest.mark.model

LONG = 6_000  # tokens of an answer that is surely being written when the server dies


def server_of(folder: Path) -> ServerProcess:
    model, projector = folder / "tiny.gguf", folder / "mmproj-tiny.gguf"
    write_tiny_model(model, "qwen2", FAMILIES["chatml"], SPECIALS)
    write_tiny_projector(projector)
    files = ("--model", str(model), "--projector", str(projector))
    sizes = ("--threads", "1", "--slots", "2", "--context", "8192")
    return ServerProcess("--engine", "llama", *files, *sizes, data=str(folder / "data"))


async def test_three_turns_about_an_image(tmp_path: Path) -> None:
    server = server_of(tmp_path)
    await asyncio.to_thread(server.start)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as http:
            assert await sees(http, "tiny")
            one, again, two, none = [await three_turns(http, "tiny", seed) for seed in (1, 1, 2, None)]
            assert [text for text, _, _ in one] == [text for text, _, _ in again]
            assert len({str(each[0][2]) for each in (one, again, two, none)}) == 3
            for (_, before, _), (_, usage, _) in pairwise(one):
                assert usage["prompt_tokens_details"]["cached_tokens"] >= before["prompt_tokens"] - 1
            assert one[0][1]["prompt_tokens"] == none[0][1]["prompt_tokens"] + ROW * ROW
    finally:
        await asyncio.to_thread(server.stop)


@pytest.mark.slow
async def test_a_killed_server_goes_on_with_what_it_saw(tmp_path: Path) -> None:
    server = server_of(tmp_path)
    await asyncio.to_thread(server.start)
    content = [{"type": "input_image", "image_url": url_of(1)}, {"type": "input_text", "text": "where is the river?"}]
    try:
        async with connected(server.url) as wire:
            session = await wire.create(temperature=0)
            begun = await wire.command("message.create", session=session, content=content, max_output_tokens=LONG)
            shown = [await wire.events.get() for _ in range(8)]
            await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with connected(server.url) as wire:
            await wire.command("subscribe", session=session, offset=0)
            told = await wire.until_end(begun["response_id"])
            assert text_of(told).startswith(text_of(shown)) and text_of(shown)
            assert told[-1]["event"]["response"]["usage"]["output_tokens"] == LONG
            sent = await wire.command("message.create", session=session, content="and?", max_output_tokens=8)
            usage = (await wire.until_end(sent["response_id"]))[-1]["event"]["response"]["usage"]
            assert usage["input_tokens_details"]["cached_tokens"] > ROW * ROW
    finally:
        await asyncio.to_thread(server.stop)


def text_of(frames: list[Any]) -> str:
    events = (frame["event"] for frame in frames)
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
