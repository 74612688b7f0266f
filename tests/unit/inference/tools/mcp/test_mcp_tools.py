"""Tools of MCP servers behind the port: found, offered, called, sent again where they may be, refused to others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sessions.model.errors import NotFound
from sessions.model.types import McpSource, TenantId
from tests.support.mcp.opened import ACME, opened_servers, request_of, stdio_table, tools_file, until

LOOPBACK = 'networks = ["127.0.0.0/8"]\n'
OTHER = TenantId("other")


async def test_who_gives_up_tells_the_server(tmp_path: Path) -> None:
    async with opened_servers(tmp_path, stdio_table(tmp_path)) as tools:
        call = asyncio.create_task(tools.call(request_of("town__slow", city="Rome")))
        await until(lambda: "slow Rome" in _asked(tmp_path))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await until(lambda: "cancelled Rome" in _asked(tmp_path))
        assert (await tools.call(request_of("town__weather", city="Oslo"))).outcome == "done"


async def test_a_call_that_takes_too_long_is_unknown_and_cancelled(tmp_path: Path) -> None:
    async with opened_servers(tmp_path, stdio_table(tmp_path, more="timeout_s = 0.5")) as tools:
        late = await tools.call(request_of("town__slow", city="Rome"))
        assert late.outcome == "unknown"
        await until(lambda: "cancelled Rome" in _asked(tmp_path))


async def test_who_has_which(tmp_path: Path) -> None:
    tenants = '[tenants.acme]\nallow = ["town__weather"]\noffer = ["town"]\n[tenants.other]\nallow = []\n'
    async with opened_servers(tmp_path, stdio_table(tmp_path) + tenants) as tools:
        assert tools.offered(ACME) == ["town__weather"] and tools.find(ACME, "town__book") is None
        assert tools.find(OTHER, "town__weather") is None
        found = await tools.of_server(ACME, McpSource(server_label="town"))
        assert [each.tool.name for each in found] == ["town__weather"]
        with pytest.raises(NotFound):
            await tools.of_server(ACME, McpSource(server_label="nowhere"))
        with pytest.raises(NotFound):
            await tools.of_server(OTHER, McpSource(server_label="town"))


@pytest.mark.parametrize(("more", "times"), [("", 1), ('idempotent = ["look"]', 3)])
async def test_a_call_is_sent_again_only_where_the_file_says_so(tmp_path: Path, more: str, times: int) -> None:
    table = stdio_table(tmp_path, mode="hangs", more=f"timeout_s = 0.3\n{more}")
    async with opened_servers(tmp_path, table) as tools:
        result = await tools.call(request_of("town__look"))
        assert result.outcome == "unknown"
        await until(lambda: len(_asked(tmp_path).splitlines()) == times)


async def test_another_file_ends_what_it_does_not_name(tmp_path: Path) -> None:
    async with opened_servers(tmp_path, stdio_table(tmp_path)) as tools:
        assert tools.find(ACME, "town__weather") is not None
        tools.put(tools_file(tmp_path, ""))
        assert tools.find(ACME, "town__weather") is None


def _asked(folder: Path) -> str:
    path = folder / "asked"
    return path.read_text() if path.exists() else ""
