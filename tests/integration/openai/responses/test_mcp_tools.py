"""Tools of a real MCP server over standard streams, called by models, as clients of OpenAI's API see them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from inference.simulated import SimulatedOptions
from sessions.model import events as ev
from tests.support.doors.openai_server import SIMULATED, Serving, serving
from tests.support.doors.tool_service import opened_tools
from tests.support.mcp.opened import stdio_table


def call_of(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Serving]:
    async with (
        opened_tools(tmp_path / "tools.toml", stdio_table(tmp_path)) as tools,
        serving(SimulatedOptions(step_base_s=0.001), tools=tools) as made,
    ):
        yield made


async def test_a_tool_of_an_mcp_server_is_called_by_its_name(client: Any, server: Serving, tmp_path: Path) -> None:
    tool: Any = {"type": "function", "name": "town__weather", "server": True}
    server.engine.script += [call_of("town__weather", city="Rome"), "It is 18 degrees."]
    done = await client.responses.create(model=SIMULATED, input="how is the weather", tools=[tool])
    assert [item.type for item in done.output] == ["function_call", "function_call_output", "message"]
    assert "18 degrees in Rome" in done.model_dump_json()
    assert (tmp_path / "asked").read_text() == "weather Rome\n"


async def test_progress_is_in_the_log(client: Any, server: Serving, tmp_path: Path) -> None:
    (tmp_path / "quick").touch()
    tool: Any = {"type": "function", "name": "town__slow", "server": True}
    server.engine.script += [call_of("town__slow", city="Rome"), "Done."]
    await client.responses.create(model=SIMULATED, input="look", tools=[tool])
    (session,) = server.sessions
    progress = [r.event for r in server.log(session) if isinstance(r.event, ev.ToolCallProgress)]
    assert [(each.progress, each.total, each.message) for each in progress][:1] == [(1.0, 4.0, "looking at Rome")]


MCP: Any = {"type": "mcp", "server_label": "town"}


async def test_the_mcp_tool_type_lists_calls_and_shows_as_openai_does(client: Any, server: Serving) -> None:
    server.engine.script += [call_of("town__weather", city="Rome"), "It is 18 degrees."]
    done = await client.responses.create(model=SIMULATED, input="how is the weather", tools=[MCP])
    listed, called, said = done.output
    assert listed.type == "mcp_list_tools" and [each.name for each in listed.tools] == ["weather", "book", "slow"]
    assert called.type == "mcp_call" and (called.name, called.server_label) == ("weather", "town")
    assert called.output == "18 degrees in Rome" and called.error is None and json.loads(called.arguments)
    assert said.type == "message" and done.output_text == "It is 18 degrees."
    assert done.tools[0].type == "mcp" and "listed" not in done.model_dump_json()
    again = await client.responses.retrieve(done.id)
    assert again.model_dump() == done.model_dump()
    server.engine.script += ["Yes."]
    later = await client.responses.create(model=SIMULATED, input="sure?", tools=[MCP], previous_response_id=done.id)
    assert [item.type for item in later.output] == ["message"], "what it lists is known"


async def test_a_stream_of_mcp_calls_is_numbered_through(client: Any, server: Serving) -> None:
    server.engine.script += ["Well. " + call_of("town__weather", city="Rome"), "It is 18 degrees."]
    stream = await client.responses.create(model=SIMULATED, input="weather", tools=[MCP], stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert "response.mcp_list_tools.completed" in kinds and "response.mcp_call.completed" in kinds
    assert "response.mcp_call_arguments.done" in kinds and "response.function_call_arguments.done" not in kinds
    added = [event for event in events if event.type == "response.output_item.added"]
    assert [event.output_index for event in added] == [0, 1, 2, 3]
    done = {event.output_index: event.item for event in events if event.type == "response.output_item.done"}
    last = events[-1]
    assert last.type == "response.completed"
    assert [done[index].model_dump() for index in range(4)] == [item.model_dump() for item in last.response.output]
    rest = await client.responses.retrieve(last.response.id, stream=True, starting_after=events[-6].sequence_number)
    assert [e.model_dump() async for e in rest] == [e.model_dump() for e in events[-5:]]


async def test_an_approval_is_asked_for_and_answered_as_openai_has_it(
    client: Any, server: Serving, tmp_path: Path
) -> None:
    asks = {**MCP, "require_approval": "always"}
    server.engine.script += [call_of("town__book", city="Rome"), "Booked."]
    first = await client.responses.create(model=SIMULATED, input="book", tools=[asks])
    request = first.output[-1]
    assert request.type == "mcp_approval_request" and request.name == "book" and first.status == "completed"
    assert not (tmp_path / "asked").exists()
    answer: Any = [{"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}]
    second = await client.responses.create(model=SIMULATED, input=answer, tools=[asks], previous_response_id=first.id)
    called, _ = second.output
    assert called.type == "mcp_call" and called.output == "booked in Rome" and called.approval_request_id == request.id
    assert second.output_text == "Booked." and (tmp_path / "asked").read_text() == "book Rome\n"
    assert (await client.responses.retrieve(second.id)).model_dump() == second.model_dump()
    assert (await client.responses.retrieve(first.id)).model_dump() == first.model_dump()


async def test_a_refused_call_is_not_made(client: Any, server: Serving, tmp_path: Path) -> None:
    asks = {**MCP, "require_approval": {"never": {"tool_names": ["weather"]}}}
    server.engine.script += [call_of("town__book", city="Rome"), "Then not."]
    first = await client.responses.create(model=SIMULATED, input="book", tools=[asks])
    answer: Any = [{"type": "mcp_approval_response", "approval_request_id": first.output[-1].id, "approve": False}]
    stream = await client.responses.create(
        model=SIMULATED, input=answer, tools=[asks], previous_response_id=first.id, stream=True
    )
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed" and [item.type for item in last.response.output] == ["mcp_call", "message"]
    called = last.response.output[0]
    assert called.type == "mcp_call" and called.error is not None and not (tmp_path / "asked").exists()


async def test_what_no_client_may_name_is_refused(client: Any, server: Serving) -> None:
    with pytest.raises(openai.BadRequestError, match="server_url"):
        tools: Any = [{**MCP, "server_url": "https://mcp.example.com/"}]
        await client.responses.create(model=SIMULATED, input="x", tools=tools)
    with pytest.raises(openai.NotFoundError, match="no MCP server 'other'"):
        await client.responses.create(model=SIMULATED, input="x", tools=[{**MCP, "server_label": "other"}])
    with pytest.raises(openai.NotFoundError, match="no tool 'other'"):
        await client.responses.create(model=SIMULATED, input="x", tools=[{**MCP, "allowed_tools": ["other"]}])
