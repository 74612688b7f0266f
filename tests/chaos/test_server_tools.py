"""Server tools of a real model over a kill -9 of the whole server while a call is under way."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from testbed.server_process import ServerProcess
from tests.support.doors.tool_service import ToolService, reply, tools_toml

pytestmark = [pytest.mark.chaos, pytest.mark.model, pytest.mark.timeout(240)]


@pytest.mark.parametrize("keyed", [True, False])
async def test_a_call_that_was_under_way_happens_once_and_what_is_not_known_is_shown(
    model_path: Path, tmp_path: Path, keyed: bool
) -> None:
    async with ToolService() as service:
        service.answer = lambda asked: reply({"booked": "room 7"})
        service.hold = asyncio.Event()
        tools = tmp_path / "tools.toml"
        tools.write_text(
            tools_toml(service, book='idempotency = "key"\ntimeout_s = 60\n' if keyed else "timeout_s = 60\n")
        )
        flags = ("--model", str(model_path), "--chat-template", "chatml", "--slots", "1", "--threads", "1")
        made = ServerProcess(*flags, "--context", "2048", "--tools", str(tools), data=str(tmp_path / "data"))
        with made as server:
            ours: Any = {"type": "function", "name": "book", "server": True}
            async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client:
                model, *_ = (await client.models.list()).data
                begun = await client.responses.create(
                    model=model.id,
                    input="Book a room in Rome.",
                    tools=[ours],
                    tool_choice="required",
                    max_output_tokens=120,
                    background=True,
                    temperature=0,
                )
                await service.wait_for(1)
                server.kill()
                service.hold.set()
                await asyncio.to_thread(server.start)
                async with asyncio.timeout(90):
                    stream = await client.responses.retrieve(begun.id, stream=True)
                    events = [event async for event in stream]
        last: Any = events[-1]
        assert last.type in ("response.completed", "response.incomplete")
        (output,) = [item.output for item in last.response.output if item.type == "function_call_output"]
        assert sum(service.effects.values()) == 1
        if keyed:
            assert json.loads(output) == {"booked": "room 7"} and len({each.key for each in service.asked}) == 1
            assert len(service.asked) == 2, "asked again under its key"
        else:
            assert output.startswith("outcome_unknown") and len(service.asked) == 1
