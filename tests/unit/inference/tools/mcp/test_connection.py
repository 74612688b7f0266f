"""One MCP server, kept running: begun again, listed again, held where it says something else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from inference.tools.mcp.agreements import MemoryPins
from inference.tools.mcp.connection import McpConnection
from inference.tools.mcp.server_table import McpServerTable
from inference.tools.mcp.stdio import McpStreams
from inference.tools.secrets import SentSecrets
from sessions.schemas import InlineSchemaChecker
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


async def test_no_secret_is_in_the_log_if_a_server_repeats_it() -> None:
    @asynccontextmanager
    async def connect(sent: SentSecrets) -> AsyncIterator[McpStreams]:
        sent.add(["a-very-secret-token"])
        raise OSError("who says a-very-secret-token?")
        yield

    table = McpServerTable(url="https://town.example/mcp")
    connection = McpConnection("", "town", table, connect, schemas=InlineSchemaChecker(), pins=MemoryPins())
    with capture_logs() as logs:
        task = asyncio.create_task(connection.run())
        async with asyncio.timeout(60):
            await connection.tried.wait()
        task.cancel()
    assert [each["reason"] for each in logs] == ["OSError: who says [removed]?"]


async def test_it_ends_even_if_the_client_raises_an_error_in_place_of_the_cancellation() -> None:
    """A server that was cancelled while its connection failed went on for ever, and its replica did not end."""
    connecting = asyncio.Event()

    @asynccontextmanager
    async def connect(sent: SentSecrets) -> AsyncIterator[McpStreams]:
        connecting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ExceptionGroup("of a task group", [OSError("it cannot be reached")]) from None
        raise AssertionError
        yield

    table = McpServerTable(url="https://town.example/mcp")
    connection = McpConnection("", "town", table, connect, schemas=InlineSchemaChecker(), pins=MemoryPins())
    task = asyncio.create_task(connection.run())
    await connecting.wait()
    task.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await task
