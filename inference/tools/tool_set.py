"""The port `ServerTools`: a tenant's tools of every kind, each carried out by who knows that kind.

`put` takes what the file says now; calls that are under way end as they began.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from msgspec.structs import replace

from inference.tools.code.code_tools import CodeTools
from inference.tools.gates import ToolGates
from inference.tools.http_tools import HttpTools
from inference.tools.mcp.mcp_tools import McpTools
from inference.tools.tools_file import AnyTool, CodeTool, ToolsFile
from sessions.model.types import McpSource, TenantId
from sessions.public_addresses import AddressRules
from sessions.server_tools import ReportProgress, ServerTool, ToolRequest, ToolResult

log = structlog.get_logger(__name__)


class ToolSet:
    """All tools of one replica. A tool of the file takes precedence over an MCP server's tool with the same name."""

    def __init__(self, file: ToolsFile, http: HttpTools, code: CodeTools, servers: McpTools, gates: ToolGates) -> None:
        self._http = http
        self._code = code
        self.servers = servers
        self._gates = gates
        self._refused: set[str] = set()  # code tools, by their places in the file
        self.put(file)

    def put(self, file: ToolsFile) -> None:
        """Replaces the tools by those of another version of the file."""
        self._file, self._rules = file, AddressRules(file.networks)
        self.servers.put(file)
        places = {place for place, tool in file.all_tools() if isinstance(tool, CodeTool)}
        missing = self._code.missing() if places else ""
        for place in sorted(places - self._refused) if missing else ():
            log.error("code_tool_refused", tool=place, reason=missing)
        self._refused = places if missing else set()

    def find(self, tenant: TenantId, name: str) -> ServerTool | None:
        tool = self._file.find(tenant, name)
        if tool is None:
            return self.servers.find(tenant, name)
        made = tool.server_tool(name, self._missing(tool))
        files = self._code.files
        if files is None or not isinstance(tool, CodeTool):
            return made
        return replace(made, check_file=files.check)

    def offered(self, tenant: TenantId) -> Sequence[str]:
        names = self._file.offered(tenant)
        own = [name for name in names if (tool := self._file.find(tenant, name)) and not self._missing(tool)]
        return [*own, *(name for name in self.servers.offered(tenant) if name not in own)]

    async def of_server(self, tenant: TenantId, source: McpSource) -> Sequence[ServerTool]:
        return await self.servers.of_server(tenant, source)

    def _missing(self, tool: AnyTool) -> str:
        """Returns why a tool cannot be carried out here; "" if it can."""
        return self._code.missing() if isinstance(tool, CodeTool) else ""

    async def call(self, request: ToolRequest, report: ReportProgress | None = None) -> ToolResult:
        tool = self._file.find(request.key.tenant, request.name)
        if tool is None:
            return await self.servers.call(request, report)
        rules = self._rules

        async def work() -> ToolResult:
            if isinstance(tool, CodeTool):
                return await self._code.call(request, tool)
            return await self._http.call(request, tool, rules)

        return await self._gates.through(request, concurrency=tool.concurrency, timeout_s=tool.timeout_s, work=work)
