"""One MCP server, kept running: begun again, listed again, held where it says something else."""

from __future__ import annotations

from pathlib import Path

from inference.tools.mcp.agreements import MemoryPins
from tests.support.mcp.opened import ACME, opened_servers, request_of, stdio_table


async def test_one_that_ends_is_begun_again_and_its_tools_stay_known(tmp_path: Path) -> None:
    async with opened_servers(tmp_path, stdio_table(tmp_path, mode="dies")) as tools:
        first = await tools.call(request_of("town__look"))
        assert first.outcome == "unknown" and tools.find(ACME, "town__look") is not None
        second = await tools.call(request_of("town__look"))
        assert second.outcome == "unknown", "it was there again, and died again"
        assert (tmp_path / "asked").read_text() == "look\nlook\n"


async def test_what_was_held_is_held_after_a_restart(tmp_path: Path) -> None:
    pins = MemoryPins()
    async with opened_servers(tmp_path, stdio_table(tmp_path, mode="pulls"), pins=pins):
        pass
    (tmp_path / "pull").touch()
    async with opened_servers(tmp_path, stdio_table(tmp_path, mode="pulls"), pins=pins) as tools:
        assert tools.find(ACME, "town__look") is None
