"""MCP servers that mean harm, behind the real door of a server: each costs its own turn its time-out, others nothing.

The servers are processes of their own (`tests.support.mcp.hostile_server`), or HTTP services that redirect and lie.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from inference.simulated import SimulatedOptions
from inference.tools.tool_set import ToolSet
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.doors.openai_server import SIMULATED, Serving, serving
from tests.support.doors.tool_service import ToolService, opened_tools, reply
from tests.support.mcp.http_server import HttpMcp
from tests.support.mcp.opened import listing_of, stdio_table, until, url_table

MCP: Any = {"type": "mcp", "server_label": "town"}
CALL = '<tool_call>\n{"name": "town__look", "arguments": {}}\n</tool_call>'


@asynccontextmanager
async def against(folder: Path, text: str) -> AsyncIterator[tuple[Serving, ToolSet]]:
    async with (
        opened_tools(folder / "tools.toml", text) as tools,
        serving(
            SimulatedOptions(step_base_s=0.001), tools=tools, filters=KeywordFilterSet(input_phrases=["sesame"])
        ) as made,
    ):
        yield made, tools


async def asked(server: Serving, *script: str, **more: Any) -> Any:
    server.engine.script += script
    async with server.client() as client:
        made: Any = client.responses
        return await made.create(model=SIMULATED, input="look", tools=[MCP], **more)


async def others_are_answered(server: Serving) -> None:
    server.engine.script.insert(0, "I do not know.")  # as the waiting turn has it: either may take either
    async with asyncio.timeout(60), server.client() as client:
        made: Any = client.responses
        done = await made.create(model=SIMULATED, input="hello")
        assert done.status == "completed"


@pytest.mark.parametrize("mode", ["hangs", "floods", "endless", "dies"])
async def test_one_that_hangs_floods_or_dies_costs_its_turn_its_time_and_others_nothing(
    tmp_path: Path, mode: str
) -> None:
    async with against(tmp_path, stdio_table(tmp_path, mode=mode, more="timeout_s = 2")) as (server, _):
        turn = asyncio.create_task(asked(server, CALL, "I do not know."))
        await until((tmp_path / "asked").exists)
        await others_are_answered(server)
        done = await turn
        called = next(item for item in done.output if item.type == "mcp_call")
        assert called.status == "failed" and called.error.startswith("outcome_unknown")
        assert done.output_text == "I do not know."
        await others_are_answered(server)


async def test_one_that_answers_too_much_is_cut(tmp_path: Path) -> None:
    async with against(tmp_path, stdio_table(tmp_path, mode="lies", more="result_bytes = 1000")) as (server, _):
        done = await asked(server, CALL, "A lot.")
        called = next(item for item in done.output if item.type == "mcp_call")
        assert len(called.output) < 1_100 and called.output.endswith("[cut off at 1000 bytes]")


async def test_of_a_hundred_thousand_tools_some_are_taken(tmp_path: Path) -> None:
    async with against(tmp_path, stdio_table(tmp_path, mode="many", more="tools_max = 20")) as (server, tools):
        assert len(listing_of(tools.servers).shown) == 20
        done = await asked(server, "Hello.")
        assert len(done.output[0].tools) == 20


async def test_names_show_nothing_that_cannot_be_seen_and_take_nobodys_place(tmp_path: Path) -> None:
    async with against(tmp_path, stdio_table(tmp_path, mode="names")) as (server, tools):
        listing = listing_of(tools.servers)
        text = json.dumps([tool.description for tool in listing.shown.values()]) + "".join(listing.held)
        assert not any(sign in text for sign in ("\x1b", "\u202e", "\u200b", "\\u001b", "\\u202e", "\\u0000"))
        assert all(name.isascii() and len(name) <= 64 for name in listing.shown) and len(listing.shown) == 3
        assert len(listing.held) == 4
        done = await asked(server, CALL, "Seen.")
        assert done.output[-1].type == "message" and "\\u001b" not in done.model_dump_json()


async def test_schema_bombs_are_left_out_and_the_rest_is_there(tmp_path: Path) -> None:
    async with against(tmp_path, stdio_table(tmp_path, mode="bombs")) as (_, tools):
        listing = listing_of(tools.servers)
        assert list(listing.shown) == ["town__look"] and len(listing.held) == 5


async def test_a_tool_that_says_something_else_than_at_first_is_not_shown(tmp_path: Path) -> None:
    async with against(tmp_path, stdio_table(tmp_path, mode="pulls")) as (server, tools):
        assert (await asked(server, CALL, "Seen.")).output_text == "Seen."
        (tmp_path / "pull").touch()
        await until(lambda: bool(listing_of(tools.servers).held))
        with pytest.raises(Exception, match="no tool 'look'"):
            async with server.client() as client:
                made: Any = client.responses
                named = {**MCP, "allowed_tools": ["look"]}
                await made.create(model=SIMULATED, input="look", tools=[named])


async def test_a_session_that_had_the_tool_cannot_call_it_any_more(tmp_path: Path) -> None:
    async with against(tmp_path, stdio_table(tmp_path, mode="pulls")) as (server, tools):
        first = await asked(server, CALL, "Seen.")
        (tmp_path / "pull").touch()
        await until(lambda: bool(listing_of(tools.servers).held))
        server.engine.script += [CALL, "Gone."]
        async with server.client() as client:
            made: Any = client.responses
            function: Any = {"type": "function", "name": "town__look", "server": True}
            with pytest.raises(Exception, match="no tool"):
                await made.create(model=SIMULATED, input="x", tools=[function], previous_response_id=first.id)
        assert (tmp_path / "asked").read_text() == "look\n"


@pytest.mark.parametrize("to", ["http://127.0.0.1:%d/", "http://169.254.169.254/latest", "https://[::1]:%d/"])
async def test_a_server_that_redirects_inside_is_not_followed(tmp_path: Path, to: str) -> None:
    async with ToolService() as inside, ToolService() as service:
        place = to % inside.port if "%d" in to else to
        service.answer = lambda asked: reply({}, 307, headers=f"location: {place}\r\n")
        text = 'networks = ["127.0.0.0/8"]\n' + url_table(service.url + "/mcp")
        async with against(tmp_path, text) as (server, tools):
            assert not inside.asked and service.asked
            assert listing_of(tools.servers).shown == {}
            with pytest.raises(Exception, match="cannot be reached"):
                await asked(server, "x")


async def test_a_name_that_leads_inside_is_not_connected_to(tmp_path: Path) -> None:
    async with ToolService() as inside:
        text = url_table(f"https://localhost:{inside.port}/mcp")
        async with against(tmp_path, text) as (server, _):
            with pytest.raises(Exception, match="cannot be reached"):
                await asked(server, "x")
        assert not inside.asked


async def test_a_body_without_an_end_is_broken_off(tmp_path: Path) -> None:
    async with ToolService() as service:
        service.answer = lambda asked: reply("x" * 3_000_000)
        text = 'networks = ["127.0.0.0/8"]\n' + url_table(service.url + "/mcp")
        async with against(tmp_path, text) as (server, tools):
            assert listing_of(tools.servers).shown == {}
            await others_are_answered(server)


async def test_a_command_comes_from_no_client(tmp_path: Path) -> None:
    async with against(tmp_path, stdio_table(tmp_path)) as (server, _), server.client() as client:
        made: Any = client.responses
        for more in ({"server_url": "https://mcp.example.com/"}, {"connector_id": "connector_x"}):
            with pytest.raises(Exception, match="not taken from clients"):
                await made.create(model=SIMULATED, input="x", tools=[{**MCP, **more}])
        with pytest.raises(Exception, match="no MCP server"):
            named = {**MCP, "server_label": "other", "command": ["sh"]}
            await made.create(model=SIMULATED, input="x", tools=[named])


async def test_a_server_that_tells_the_secrets_that_it_was_sent(tmp_path: Path, capsys: Any) -> None:
    """Over HTTP in its answer, as a process in its error and in what it logs."""
    async with HttpMcp("from the environment").running() as service:
        header = 'headers.authorization = {env = "TOOL_SECRET", prefix = "Bearer "}'
        text = 'networks = ["127.0.0.0/8"]\n' + url_table(service.url, more=header)
        async with against(tmp_path, text) as (server, _):
            done = await asked(server, CALL, "I see.")
            called = next(item for item in done.output if item.type == "mcp_call")
            assert called.output == "headers: Bearer [removed]"
    table = stdio_table(tmp_path, mode="tells", more='env.TOKEN = {env = "TOOL_SECRET"}')
    async with against(tmp_path, table) as (server, _):
        done = await asked(server, CALL, "I see.")
        called = next(item for item in done.output if item.type == "mcp_call")
        assert called.error == "mcp_error -1: wrong token: [removed]"
        (session,) = server.sessions
        assert "from the environment" not in repr(server.log(session))
    said = capsys.readouterr()
    assert "my token is [removed]" in said.out + said.err and "from the environment" not in said.out + said.err
