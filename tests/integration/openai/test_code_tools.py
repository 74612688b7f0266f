"""Code that the server runs for models, as clients of OpenAI's API see it: `code_interpreter_call` items."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseCodeInterpreterToolCall
from openai.types.responses.response_code_interpreter_tool_call import OutputLogs

from inference.simulated import SimulatedOptions
from tests.support.doors.code_runs import CODE
from tests.support.doors.openai_server import SIMULATED, Serving, serving
from tests.support.doors.tool_service import opened_tools

TABLES = """
[tools.code_interpreter]
kind = "code"
timeout_s = 5
"""


def call(code: str) -> str:
    function = json.dumps({"name": "code_interpreter", "arguments": {"code": code}})
    return f"Let me see. <tool_call>\n{function}\n</tool_call>"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Serving]:
    async with (
        opened_tools(tmp_path / "tools.toml", TABLES) as tools,
        serving(SimulatedOptions(step_base_s=0.001), tools=tools) as made,
    ):
        yield made


async def test_code_runs_and_its_item_has_what_came_of_it(client: openai.AsyncOpenAI, server: Serving) -> None:
    server.engine.script += [call("print(6 * 7)"), "It is 42."]
    done = await client.responses.create(model=SIMULATED, input="how much", tools=[CODE])
    assert [item.type for item in done.output] == ["message", "code_interpreter_call", "message"]
    ran = done.output[1]
    assert isinstance(ran, ResponseCodeInterpreterToolCall)
    assert ran.code == "print(6 * 7)" and ran.status == "completed" and ran.container_id.startswith("cntr_")
    assert [each.model_dump() for each in ran.outputs or ()] == [{"type": "logs", "logs": "42"}]
    assert done.tools[0].model_dump()["type"] == "code_interpreter" and done.output_text.endswith("It is 42.")
    again = await client.responses.retrieve(done.id)
    assert again.model_dump() == done.model_dump()
    server.engine.script.append("Yes.")
    sent_back: Any = [*(item.model_dump() for item in done.output), {"role": "user", "content": "sure?"}]
    after = await client.responses.create(model=SIMULATED, input=sent_back, tools=[CODE])
    assert after.output_text == "Yes."


async def test_a_stream_has_the_events_of_openai_and_can_be_read_again(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    server.engine.script += [call("1 / 0"), "That went wrong."]
    stream = await client.responses.create(model=SIMULATED, input="divide", tools=[CODE], stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events if "code_interpreter" in event.type]
    assert kinds == [
        "response.code_interpreter_call.in_progress",
        "response.code_interpreter_call_code.delta",
        "response.code_interpreter_call_code.done",
        "response.code_interpreter_call.interpreting",
        "response.code_interpreter_call.completed",
    ]
    last = events[-1]
    assert last.type == "response.completed"
    ran = last.response.output[1]
    assert isinstance(ran, ResponseCodeInterpreterToolCall) and ran.status == "failed"
    assert ran.outputs is not None
    (logs,) = ran.outputs
    assert isinstance(logs, OutputLogs) and "ZeroDivisionError" in logs.logs
    items = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.id for item in items] == [item.id for item in last.response.output]
    again = await client.responses.retrieve(last.response.id, stream=True, starting_after=4)
    assert [event.model_dump() async for event in again] == [event.model_dump() for event in events[5:]]


async def test_without_the_tool_in_the_file_there_is_none(client: openai.AsyncOpenAI, tmp_path: Path) -> None:
    container: Any = {"type": "code_interpreter", "container": "cntr_mine"}
    with pytest.raises(openai.BadRequestError, match="Containers are made by the server"):
        await client.responses.create(model=SIMULATED, input="x", tools=[container])
