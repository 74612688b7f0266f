"""One MCP server, kept running: begun again, listed again, held where it says something else."""

from __future__ import annotations

from pathlib import Path

from inference.tools.mcp.agreements import MemoryPins
from tests.support.mcp.opened import ACME, opened_servers, request_of, stdio_table, until


async def test_one_that_ends_is_begun_again_and_its_tools_stay_known(tmp_path: Path) -> None:
    async with opened_servers(tmp_path, stdio_table(tmp_path, mode="dies")) as tools:
        first = await tools.call(request_of("town__look"))
        assert first.outcome == "unknown" and tools.find(ACME, "town__look") is not None
        second = await tools.call(request_of("town__look"))
        assert second.outcome == "unknown", "it was there again, and died again"
        assert (tmp_path / "asked").read_text() == "look\nlook\n"


async def test_a_changed_description_is_held_until_somebody_agrees(tmp_path: Path) -> None:
    pins = MemoryPins()
    async with opened_servers(tmp_path, stdio_table(tmp_path, mode="pulls"), pins=pins) as tools:
        assert tools.find(ACME, "town__look") is not None
        (tmp_path / "pull").touch()
        await until(lambda: pins.listings["", "town"].held == {"town__look": "changed", "town__more": "new"})
        assert tools.find(ACME, "town__look") is None
        assert (await tools.call(request_of("town__look"))).outcome == "not_sent"
        waiting = pins.listings["", "town"].waiting
        await pins.remember("", "town", {"town__look": waiting["town__look"].digest})
        tools.look_again("", "town")
        await until(lambda: tools.find(ACME, "town__look") is not None)
        assert tools.find(ACME, "town__more") is None


async def test_what_was_held_is_held_after_a_restart(tmp_path: Path) -> None:
    pins = MemoryPins()
    async with opened_servers(tmp_path, stdio_table(tmp_path, mode="pulls"), pins=pins):
        pass
    (tmp_path / "pull").touch()
    async with opened_servers(tmp_path, stdio_table(tmp_path, mode="pulls"), pins=pins) as tools:
        assert tools.find(ACME, "town__look") is None


async def test_the_file_may_say_that_changes_are_taken(tmp_path: Path) -> None:
    (tmp_path / "pull").touch()
    pins = MemoryPins()
    await pins.remember("", "town", {"town__look": "another"})
    table = stdio_table(tmp_path, mode="pulls", more='changes = "take"')
    async with opened_servers(tmp_path, table, pins=pins) as tools:
        assert tools.find(ACME, "town__look") is not None and tools.find(ACME, "town__more") is not None
