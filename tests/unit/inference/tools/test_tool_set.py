"""Tools of every kind by name: who carries a call out, what is refused, how many run at once."""

from __future__ import annotations

import json
from pathlib import Path

from sessions.model.types import CallId, McpSource, ResponseId, SessionId, SessionKey, TenantId
from sessions.server_tools import ProgramStep, ToolRequest, ToolResult
from tests.support.doors.tool_service import ToolService, opened_tools, tools_toml
from tests.support.mcp.opened import request_of, stdio_table

ACME, OTHER = TenantId("acme"), TenantId("other")


def request(name: str, arguments: dict[str, str]) -> ToolRequest:
    return ToolRequest(
        key=SessionKey(ACME, SessionId("s")),
        response_id=ResponseId("r"),
        call_id=CallId("c"),
        name=name,
        arguments=json.dumps(arguments),
        execution_id=f"{name}{arguments}",
    )


async def test_a_program_of_a_tool_that_is_gone_ends(tmp_path: Path) -> None:
    async with ToolService() as service, opened_tools(tmp_path / "t", tools_toml(service, weather="")) as tools:
        end = await tools.advance(ProgramStep(request=request("program", {"code": "1"}), functions={}))
        assert isinstance(end, ToolResult) and end.outcome == "failed"


async def test_tools_of_the_file_and_of_mcp_servers_are_found_offered_and_called(tmp_path: Path) -> None:
    async with ToolService() as service:
        tenants = '[tenants.acme]\noffer = ["look", "town__weather"]\n'
        text = tools_toml(service, look="") + "\n" + stdio_table(tmp_path) + tenants
        async with opened_tools(tmp_path / "tools.toml", text) as tools:
            assert list(tools.offered(ACME)) == ["look", "town__weather"]
            assert tools.find(ACME, "look") is not None and tools.find(ACME, "town__book") is not None
            assert len(await tools.of_server(ACME, McpSource(server_label="town"))) == 3
            assert (await tools.call(request_of("look", city="Rome"))).outcome == "done"
            assert (await tools.call(request_of("town__weather", city="Rome"))).output == "18 degrees in Rome"
