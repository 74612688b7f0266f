"""Code that the server runs for models, as clients of OpenAI's API see it: `code_interpreter_call` items, and programs
that call the session's other tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import ResponseCodeInterpreterToolCall
from openai.types.responses.response_code_interpreter_tool_call import OutputLogs

from inference.simulated import SimulatedOptions
from sessions.model import events as ev
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.doors.openai_server import SIMULATED, Serving, serving
from tests.support.doors.tool_service import ToolService, opened_tools, reply, tools_toml
from tests.support.mcp.opened import stdio_table, until

CODE: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
PROGRAM: Any = {"type": "function", "name": "program", "server": True}
WEATHER: Any = {"type": "function", "name": "weather", "server": True}
TABLES = """
[tools.code_interpreter]
kind = "code"
timeout_s = 5

[tools.program]
kind = "code"
interpreter = "program"
"""


def call(name: str, code: str) -> str:
    return f"Let me see. <tool_call>\n{json.dumps({'name': name, 'arguments': {'code': code}})}\n</tool_call>"


@pytest.fixture
async def service() -> AsyncIterator[ToolService]:
    async with ToolService() as made:
        made.answer = lambda asked: reply({"degrees": 18})
        yield made


@pytest.fixture
async def server(service: ToolService, tmp_path: Path) -> AsyncIterator[Serving]:
    text = tools_toml(service, weather='idempotency = "key"\n') + TABLES
    async with (
        opened_tools(tmp_path / "tools.toml", text) as tools,
        serving(
            SimulatedOptions(step_base_s=0.001), tools=tools, filters=KeywordFilterSet(input_phrases=["sesame"])
        ) as made,
    ):
        yield made


async def test_code_runs_and_its_item_has_what_came_of_it(client: openai.AsyncOpenAI, server: Serving) -> None:
    server.engine.script += [call("code_interpreter", "print(6 * 7)"), "It is 42."]
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
    server.engine.script += [call("code_interpreter", "1 / 0"), "That went wrong."]
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


async def test_a_program_calls_tools_and_each_call_is_journaled_before_it_is_sent(
    client: openai.AsyncOpenAI, server: Serving, service: ToolService
) -> None:
    code = (
        "total = 0\nfor city in ['Rome', 'Oslo']:\n    total += weather(city=city)['degrees']\nprint(total)\ntotal / 2"
    )
    server.engine.script += [call("program", code), "18 on average."]
    done = await client.responses.create(model=SIMULATED, input="average", tools=[PROGRAM, WEATHER])
    (output,) = [item for item in done.output if item.type == "function_call_output"]
    assert output.output == "36\n18.0" and done.output_text.endswith("18 on average.")
    assert [json.loads(asked.body) for asked in service.asked] == [{"city": "Rome"}, {"city": "Oslo"}]
    assert len({asked.key for asked in service.asked}) == 2
    (session,) = server.sessions
    records = server.log(session)
    kinds = [type(record.event) for record in records]
    assert (
        kinds.count(ev.ProgramCalled) == kinds.count(ev.ProgramReturned) == 2 and kinds.count(ev.ToolCallStarted) == 3
    )
    called = [record for record in records if isinstance(record.event, ev.ProgramCalled)]
    points = [record.private.program for record in called if record.private is not None and record.private.program]
    assert len({point.chain for point in points}) == 2 and all(point.snapshot for point in points)


async def test_what_a_tool_says_to_a_program_passes_the_filters(
    client: openai.AsyncOpenAI, server: Serving, service: ToolService
) -> None:
    service.answer = lambda asked: reply({"say": "open sesame"})
    code = "try:\n    print(weather(city='Rome'))\nexcept RuntimeError as error:\n    print('refused', error)"
    server.engine.script += [call("program", code), "No."]
    done = await client.responses.create(model=SIMULATED, input="x", tools=[PROGRAM, WEATHER])
    (output,) = [item for item in done.output if item.type == "function_call_output"]
    assert "refused" in output.output and "sesame" not in output.output


async def test_a_program_makes_no_call_of_an_mcp_tool_that_its_client_wants_to_be_asked_of(tmp_path: Path) -> None:
    text = TABLES + stdio_table(tmp_path)
    asks: Any = {"type": "mcp", "server_label": "town", "require_approval": "always"}
    async with (
        opened_tools(tmp_path / "tools.toml", text) as tools,
        serving(SimulatedOptions(step_base_s=0.001), tools=tools) as made,
        made.client() as client,
    ):
        made.engine.script += [call("program", "town__book(city='Rome')"), "Booked."]
        turn = asyncio.create_task(client.responses.create(model=SIMULATED, input="book", tools=[PROGRAM, asks]))

        def asked() -> list[ev.ToolApprovalRequested]:
            records = [record for session in made.sessions for record in made.log(session)]
            return [record.event for record in records if isinstance(record.event, ev.ToolApprovalRequested)]

        await until(lambda: bool(asked()))
        assert not (tmp_path / "asked").exists()
        (session,) = made.sessions
        approve = {"type": "tool.approve", "id": "a", "session": session, "call_id": asked()[0].call_id}
        async with httpx.AsyncClient(base_url=made.server.url, timeout=60) as http:
            assert (await http.post("/v1/commands", json=approve)).status_code == 200
        done = await turn
        assert done.output_text.endswith("Booked.") and (tmp_path / "asked").read_text() == "book Rome\n"


async def test_without_the_tool_in_the_file_there_is_none(client: openai.AsyncOpenAI, tmp_path: Path) -> None:
    container: Any = {"type": "code_interpreter", "container": "cntr_mine"}
    with pytest.raises(openai.BadRequestError, match="Containers are made by the server"):
        await client.responses.create(model=SIMULATED, input="x", tools=[container])
