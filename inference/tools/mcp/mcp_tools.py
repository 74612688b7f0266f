"""The tools of MCP servers: which a tenant has, and what comes of a call.

Each server of the tools file has one connection at each replica; a tenant's own has its own. A call that was sent and
has no answer is unknown, unless the file says that calls of the tool may be sent again: then it is, with growing
pauses.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final, NamedTuple

import httpx2
import structlog
from mcp import MCPError
from mcp.client.streamable_http import streamable_http_client

from inference.tools.gates import ToolGates, not_sent, retried, unanswered
from inference.tools.mcp.agreements import StoredPins
from inference.tools.mcp.catalogue import McpTool
from inference.tools.mcp.connection import Connect, McpConnection
from inference.tools.mcp.guarded_http import CONNECT_S, GuardedTransport
from inference.tools.mcp.plain_words import plain_words
from inference.tools.mcp.results import result_of
from inference.tools.mcp.server_table import McpServerTable
from inference.tools.mcp.stdio import McpStreams, Note, StdioCommand, stdio_streams
from inference.tools.outbound import Resolve, ToolUnanswered, ToolUnreached
from inference.tools.secrets import SentSecrets, header_values, secret_values
from inference.tools.tools_file import ToolsFile
from sessions.added_tools import server_of
from sessions.model.errors import NotFound, Unavailable
from sessions.model.types import McpSource, TenantId
from sessions.name_lookup import NameLookup
from sessions.ports import SchemaChecker
from sessions.public_addresses import AddressRules
from sessions.server_tools import ReportProgress, ServerTool, ToolRequest, ToolResult

log = structlog.get_logger(__name__)

FIRST_LISTING_S: Final = 10.0  # how many seconds a start waits for servers
READ_S: Final = 330.0  # time-out of an answer's stream, above what a call may take


class _Running(NamedTuple):
    connection: McpConnection
    task: asyncio.Task[None]


class McpTools:
    """The MCP servers of a replica and their tools; usable inside its `async with`. `put` takes another version of the
    file."""

    def __init__(
        self,
        environment: Mapping[str, str],
        schemas: SchemaChecker,
        pins: StoredPins,
        gates: ToolGates,
        resolve: Resolve | None = None,
    ) -> None:
        self._environment = environment
        self._schemas = schemas
        self._pins = pins
        self._gates = gates
        self._resolve = resolve or NameLookup().addresses
        self._file = ToolsFile()
        self._rules = AddressRules()
        self._running: dict[tuple[str, str], _Running] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> McpTools:
        return self

    async def __aexit__(self, *exc: object) -> None:
        tasks = [*(running.task for running in self._running.values()), *self._ending]
        for task in tasks:
            task.cancel()
        self._running.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    def put(self, file: ToolsFile) -> None:
        """Starts servers that are new or changed, and ends those that the file no longer has: commands at once, with
        their calls, connections to a URL when their calls have ended."""
        self._file, self._rules = file, AddressRules(file.networks)
        wanted = dict(file.all_servers())
        for name, running in list(self._running.items()):
            if wanted.get(name) != running.connection.table:
                running.connection.retire()
                ending = asyncio.create_task(_end(running))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
                del self._running[name]
        for (owner, label), table in wanted.items():
            if (owner, label) not in self._running:
                connect = self._connect(label, table)
                connection = McpConnection(owner, label, table, connect, schemas=self._schemas, pins=self._pins)
                self._running[owner, label] = _Running(connection, asyncio.create_task(connection.run()))

    async def first_listings(self) -> None:
        """Waits until each server has listed its tools, or failed, or `FIRST_LISTING_S` are over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LISTING_S):
                await asyncio.gather(*(running.connection.tried.wait() for running in self._running.values()))

    def look_again(self, owner: str, label: str) -> None:
        """Has a server list its tools again, because the agreements about them have changed."""
        if (running := self._running.get((owner, label))) is not None:
            running.connection.look_again()

    # -- what `ToolSet` asks ------------------------------------------------------------------------------------------

    def find(self, tenant: TenantId, name: str) -> ServerTool | None:
        found = self._found(tenant, name)
        return None if found is None else found[1].server_tool(found[0].label, found[0].table)

    def offered(self, tenant: TenantId) -> Sequence[str]:
        """Returns the names of the tools that the file offers to the tenant's sessions, as far as servers have them; an
        offered server stands for all of its tools."""
        names: list[str] = []
        for name in self._file.offered(tenant):
            connection = self._connection(tenant, name)
            if connection is not None:
                shown = connection.listing.shown
                names += [
                    each for each in shown if name in (each, connection.label) and self._file.has_server(tenant, each)
                ]
        return names

    async def of_server(self, tenant: TenantId, source: McpSource) -> Sequence[ServerTool]:
        label = source.server_label
        connection = self._connection(tenant, label)
        if connection is None or not self._file.has_server(tenant, label):
            raise NotFound("tool_not_found", f"The server has no MCP server {label!r} for you.", param="tools")
        if not connection.listing.shown and not connection.ready.is_set():
            what = f"The MCP server {label!r} cannot be reached now{connection.because}."
            raise Unavailable("mcp_server_unavailable", what)
        shown = connection.listing.shown.values()
        return [tool.server_tool(label, connection.table) for tool in shown if self._file.has_server(tenant, tool.name)]

    async def call(self, request: ToolRequest, report: ReportProgress | None = None) -> ToolResult:
        found = self._found(request.key.tenant, request.name)
        if found is None:
            return ToolResult(outcome="not_sent", output="tool_not_found: there is no such tool any more.")
        connection, tool = found
        table = connection.table
        attempts = 1 + (table.retries if table.repeatable(tool.own_name, hinted=tool.idempotent) else 0)
        with connection.in_use():
            return await self._gates.through(
                request,
                concurrency=table.concurrency,
                timeout_s=table.timeout_s,
                work=lambda: retried(attempts, lambda: self._once(request, connection, tool, report)),
            )

    # -- one call -----------------------------------------------------------------------------------------------------

    async def _once(
        self, request: ToolRequest, connection: McpConnection, tool: McpTool, report: ReportProgress | None
    ) -> tuple[ToolResult, bool]:
        """Sends a call; returns its result, and whether it is final."""
        arguments = json.loads(request.arguments)
        if not isinstance(arguments, dict):
            return ToolResult(outcome="not_sent", output="invalid_arguments: they are no object"), True
        table = connection.table
        sent = connection.ready.is_set()
        try:
            async with asyncio.timeout(table.timeout_s):
                answer = await connection.call(tool.own_name, arguments, report)
            return result_of(answer, table.result_bytes, connection.sent.taken_out), True
        except ToolUnreached:
            return not_sent(f"it cannot be reached{connection.because}"), False
        except TimeoutError:
            if not sent and not connection.ready.is_set():
                return not_sent(f"it cannot be reached{connection.because}"), False
            return unanswered(f"it took longer than {table.timeout_s:g} s"), False
        except ToolUnanswered as error:
            return unanswered(f"{error}{connection.because}"), False
        except MCPError as error:
            words = plain_words(connection.sent.taken_out(error.error.message), 1_024)
            words += connection.because if table.url else ""
            return ToolResult(outcome="failed", output=f"mcp_error {error.error.code}: {words}"), True

    # -- small --------------------------------------------------------------------------------------------------------

    def _connection(self, tenant: TenantId, name: str) -> McpConnection | None:
        """Returns the connection to the MCP server that `name`, a tool or a LABEL, belongs to; None if the tenant has
        no such server, or it is not running."""
        found = self._file.server(tenant, server_of(name))
        if found is None or (found[0], server_of(name)) not in self._running:
            return None
        return self._running[found[0], server_of(name)].connection

    def _found(self, tenant: TenantId, name: str) -> tuple[McpConnection, McpTool] | None:
        connection = self._connection(tenant, name)
        tool = connection.listing.shown.get(name) if connection is not None else None
        if connection is None or tool is None or not self._file.has_server(tenant, name):
            return None
        return connection, tool

    def _connect(self, label: str, table: McpServerTable) -> Connect:
        def connect(sent: SentSecrets, note: Note) -> AbstractAsyncContextManager[McpStreams]:
            return self._command(label, table, sent, note) if table.command else self._url(table, sent, note)

        return connect

    @asynccontextmanager
    async def _command(
        self, label: str, table: McpServerTable, sent: SentSecrets, note: Note
    ) -> AsyncIterator[McpStreams]:
        given = await asyncio.to_thread(secret_values, table.env, self._environment)
        sent.add(given.secrets)
        path = self._environment.get("PATH")
        environment = given.values if path is None else {"PATH": path, **given.values}
        about = StdioCommand(label, table.command, environment, table.folder or None, table.memory_mb << 20, sent, note)
        async with stdio_streams(about) as streams:
            yield streams

    @asynccontextmanager
    async def _url(self, table: McpServerTable, sent: SentSecrets, note: Note) -> AsyncIterator[McpStreams]:
        async def credentials() -> Mapping[str, str]:
            given = await asyncio.to_thread(header_values, table.headers, self._environment)
            sent.add(given.secrets)
            return given.values

        transport = GuardedTransport(lambda: self._rules, credentials, note, resolve=self._resolve)
        timeout = httpx2.Timeout(CONNECT_S, read=READ_S)
        async with (
            httpx2.AsyncClient(transport=transport, timeout=timeout, trust_env=False) as client,
            streamable_http_client(table.url, http_client=client) as (read, write),
        ):
            yield McpStreams(read, write, asyncio.Event())


async def _end(running: _Running) -> None:
    """Ends a connection that is not wanted any more."""
    try:
        if not running.connection.table.command:
            await running.connection.unused.wait()
    finally:
        running.task.cancel()
        await asyncio.gather(running.task, return_exceptions=True)
