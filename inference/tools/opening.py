"""Makes the server's tools of the settings: reads the file, and again whenever it changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from inference.tools.breaker import SharedBreakers
from inference.tools.tools_file import ToolsFile, read_tools
from sessions.file_watcher import FileWatcher
from sessions.metrics import Metrics
from sessions.model.errors import BadInput
from sessions.model.knowledge.files import FileQuotas, FileStore
from sessions.model.types import TenantId, UnixMs
from sessions.ports import SchemaChecker, ServerTools
from sessions.tool_records import ToolRecordStore

CALL_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class ToolSettings(Protocol):
    @property
    def tools(self) -> str: ...

    @property
    def file_bytes(self) -> int: ...


class ToolStore(Protocol):
    """The parts of a store that tools need."""

    @property
    def tool_records(self) -> ToolRecordStore: ...

    @property
    def files(self) -> FileStore: ...


def _no_quotas(tenant: TenantId) -> FileQuotas:
    return FileQuotas()


@contextlib.asynccontextmanager
async def open_tools(
    settings: ToolSettings,
    measures: Metrics,
    environment: Mapping[str, str],
    schemas: SchemaChecker,
    store: ToolStore | None = None,
    now_ms: Callable[[], UnixMs] | None = None,
    breakers: SharedBreakers | None = None,
    quotas: Callable[[TenantId], FileQuotas] = _no_quotas,
) -> AsyncIterator[ServerTools | None]:
    """Opens the server's tools; yields None if no tools file is named. Raises BadInput for a file that is wrong at the
    start; a later wrong version changes nothing. Agreements to MCP servers' tools are kept in `store`, an open store,
    and files that code leaves, within `quotas`; without `store` and `now_ms` agreements last as long as the process,
    and no files are kept. `breakers` are those of the cluster, if it is one."""
    if not settings.tools:
        yield None
        return
    from inference.tools.code.code_tools import open_code_tools
    from inference.tools.code.programs import open_interpreter
    from inference.tools.code.run_files import RunFiles
    from inference.tools.gates import ToolGates
    from inference.tools.http_tools import HttpTools  # the HTTP client is loaded only where it is needed
    from inference.tools.mcp.agreements import MemoryPins, StoredPins
    from inference.tools.mcp.mcp_tools import McpTools, McpWorld
    from inference.tools.outbound import ToolHttpClient
    from inference.tools.tool_set import ToolSet

    call_s = measures.histograms("tool_call_duration_seconds", "How long calls of server tools took.", CALL_S, "tool")
    gates = ToolGates(call_s, breakers)
    stored = StoredPins(store.tool_records, now_ms) if store is not None and now_ms is not None else None
    run_files = None
    if store is not None and now_ms is not None and settings.file_bytes:
        run_files = RunFiles(store.files, quotas, now_ms, bytes_max=settings.file_bytes)
    world = McpWorld(environment, schemas, stored or MemoryPins())
    async with (
        ToolHttpClient() as client,
        open_code_tools(run_files) as code,
        open_interpreter() as programs,
        McpTools(world, gates) as servers,
    ):

        async def take(file: ToolsFile) -> None:
            tools.put(file)

        watcher = FileWatcher(Path(settings.tools), read_tools, take, what="tools", refused=(ValueError,))
        try:
            first = await asyncio.to_thread(watcher.first)
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or error
            raise BadInput("invalid_setting", f"tools = {settings.tools!r}: {why}", param="tools") from error
        http = HttpTools(first, client, environment, gates=gates)
        tools = ToolSet(first, http, code, programs, servers, call_s=call_s)
        await servers.first_listings()
        works = [watcher.run()] if stored is None else [watcher.run(), stored.follow(servers.look_again)]
        watching = [asyncio.create_task(work) for work in works]
        try:
            yield tools
        finally:
            for each in watching:
                each.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            await gates.close()
