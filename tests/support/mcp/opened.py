"""MCP servers for tests: tables of the tools file, and what runs them as the server does."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from inference.tools.gates import ToolGates
from inference.tools.mcp.agreements import StoredPins
from inference.tools.mcp.catalogue import Listing
from inference.tools.mcp.mcp_tools import McpTools
from inference.tools.opening import CALL_S
from inference.tools.tools_file import ToolsFile, read_tools
from sessions.metrics import Metrics
from sessions.model.types import CallId, ResponseId, SessionId, SessionKey, TenantId
from sessions.schemas import InlineSchemaChecker
from sessions.server_tools import ToolRequest

ROOT: Final = Path(__file__).resolve().parents[3]
ACME: Final = TenantId("acme")


class MemoryPins(StoredPins):
    """Agreements that are kept for as long as a test lasts."""

    def __init__(self) -> None:
        self._agreed: dict[tuple[str, str], dict[str, str]] = {}

    async def agreed(self, owner: str, label: str) -> Mapping[str, str] | None:
        return self._agreed.get((owner, label))

    async def remember(self, owner: str, label: str, digests: Mapping[str, str]) -> None:
        self._agreed.setdefault((owner, label), {}).update(digests)

    async def listed(self, owner: str, label: str, listing: Listing) -> None:
        pass


def stdio_table(folder: Path, *, label: str = "town", mode: str | None = None, more: str = "") -> str:
    """A server of the tests in the tools file: the honest one, or the hostile one in a `mode`."""
    honest = ["tests.support.mcp.stdio_server", str(folder)]
    module = honest if mode is None else ["tests.support.mcp.hostile_server", mode, str(folder)]
    command = json.dumps([sys.executable, "-m", *module])
    return f'[servers.{label}]\ncommand = {command}\nfolder = "{ROOT}"\n{more}\n'


def url_table(url: str, *, label: str = "town", more: str = "") -> str:
    return f'[servers.{label}]\nurl = "{url}"\n{more}\n'


def tools_file(folder: Path, text: str) -> ToolsFile:
    path = folder / "tools.toml"
    path.write_text(text)
    return read_tools(path)


@asynccontextmanager
async def opened_servers(folder: Path, text: str, **world: Any) -> AsyncIterator[McpTools]:
    """The servers of a file, each tried once."""
    given: dict[str, Any] = {
        "environment": {},
        "schemas": InlineSchemaChecker(),
        "pins": MemoryPins(),
    }
    call_s = Metrics().histograms("tool_call_duration_seconds", "", CALL_S, "tool")
    async with McpTools(**{**given, **world}, gates=ToolGates(call_s)) as tools:
        tools.put(tools_file(folder, text))
        await tools.first_listings()
        yield tools


def listing_of(tools: McpTools, label: str = "town") -> Listing:
    """Returns the tools that a server of all tenants listed last."""
    return tools._running["", label].connection.listing


def request_of(name: str, *, tenant: TenantId = ACME, number: int = 0, **arguments: Any) -> ToolRequest:
    return ToolRequest(
        key=SessionKey(tenant, SessionId("s")),
        response_id=ResponseId("resp_1"),
        call_id=CallId(f"call_{number}"),
        name=name,
        arguments=json.dumps(arguments),
        execution_id=f"x{number}",
    )


async def until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Returns when something holds that another process brings about."""
    async with asyncio.timeout(timeout_s):
        while not holds():
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.02)
