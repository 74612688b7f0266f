"""Makes the server's tools of the settings: reads the file, and again whenever it changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from sessions.added_tools import AddedToolCheck
from sessions.file_watcher import watched_file
from sessions.metrics import Metrics
from sessions.model.knowledge.files import FileQuotas
from sessions.model.types import TenantId, UnixMs
from sessions.ports import SchemaChecker, ServerTools
from sessions.store import Store

if TYPE_CHECKING:
    from inference.tools.breaker import SharedBreakers
    from inference.tools.tools_file import ToolsFile

CALL_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class ToolSettings(Protocol):
    @property
    def tools(self) -> str: ...

    @property
    def file_bytes(self) -> int: ...


@contextlib.asynccontextmanager
async def open_tools(
    settings: ToolSettings,
    measures: Metrics,
    environment: Mapping[str, str],
    schemas: SchemaChecker,
    store: Store,
    now_ms: Callable[[], UnixMs],
    quotas: Callable[[TenantId], FileQuotas],
    breakers: SharedBreakers | None = None,
) -> AsyncIterator[ServerTools | None]:
    """Opens the server's tools; yields None if no tools file is named. Raises BadInput for a file that is wrong at the
    start; a later wrong version changes nothing. `store` is an open store: in it are agreements to MCP servers' tools,
    the tools that administrators add, and files that code leaves, within `quotas`. `breakers` are those of the
    cluster, if it is one."""
    if not settings.tools:
        yield None
        return
    from inference.tools.added_tools import ToolSources
    from inference.tools.code.code_tools import CodeTools
    from inference.tools.code.run_files import RunFiles
    from inference.tools.gates import ToolGates
    from inference.tools.http_tools import HttpTools  # the HTTP client is loaded only where it is needed
    from inference.tools.mcp.agreements import StoredPins
    from inference.tools.mcp.mcp_tools import McpTools
    from inference.tools.outbound import ToolHttpClient
    from inference.tools.tool_set import ToolSet
    from inference.tools.tools_file import read_tools

    call_s = measures.histograms("tool_call_duration_seconds", "How long calls of server tools took.", CALL_S, "tool")
    gates = ToolGates(call_s, breakers)

    async def exists(owner: str, label: str) -> bool:
        return await sources.has_server(store.added_tools, owner, label)

    pins = StoredPins(store.tool_records, now_ms, exists)
    run_files = None
    if settings.file_bytes:
        run_files = RunFiles(store.files, quotas, now_ms, bytes_max=settings.file_bytes)
    async with (
        ToolHttpClient() as client,
        contextlib.aclosing(CodeTools(run_files)) as code,
        McpTools(environment, schemas, pins, gates) as servers,
        watched_file("tools", settings.tools, read_tools, lambda file: sources.put_file(file)) as first,
    ):
        tools = ToolSet(first, HttpTools(client, environment), code, servers, gates)
        sources = ToolSources(first, tools.put)
        await servers.first_listings()  # of the file's: nobody waits for those that tenants have added
        await sources.look(store.added_tools)
        works = pins.follow(servers.look_again), sources.follow(store.added_tools)
        following = [asyncio.create_task(work) for work in works]
        try:
            yield tools
        finally:
            for each in following:
                each.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            await gates.close()


@contextlib.asynccontextmanager
async def open_added_tool_check(settings: ToolSettings) -> AsyncIterator[AddedToolCheck | None]:
    """Opens the check of tools that administrators add, by the present tools file; yields None if no file is named.
    Raises BadInput for a file that is wrong at the start."""
    if not settings.tools:
        yield None
        return
    from inference.tools.added_tools import AddedToolRules
    from inference.tools.tools_file import read_tools

    def take(file: ToolsFile) -> None:
        rules.file = file

    async with watched_file("tools", settings.tools, read_tools, take, what="tool_rules") as first:
        rules = AddedToolRules(first)
        yield rules
