"""The tools that administrators add over the API: how their tables are read, and how they stand beside the file's.

A table is read as one of the tools file is, and has the same bounds and errors. What would reach into the server itself
(code, networks, files and variables with secrets) is the operator's alone. The file has precedence: a name that it has
cannot be added, and one that it gets later hides what was added.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import structlog

from inference.tools.mcp.server_table import McpServerTable
from inference.tools.secrets import SecretText
from inference.tools.tools_file import NOT_PERMITTED, HttpTool, Label, Name, TenantTools, ToolsFile, reason_of
from sessions.added_tools import HIDDEN, NAME_PARAMS, AddedKind, AddedTool, AddedTools, AddedToolStore, server_of
from sessions.model.errors import BadInput, Conflict, SessileError
from sessions.model.types import TenantId
from sessions.public_addresses import AddressRules
from sessions.server_tools import CODE_INTERPRETER, FILE_SEARCH

log = structlog.get_logger(__name__)

LOOK_S: Final = 1.0
PAGE: Final = 100
HEADERS_MAX: Final = 32  # of a tool or server
SERVERS_MAX: Final = 2_000  # of all tenants: each replica keeps a connection to each
_OPERATORS: Final[dict[AddedKind, tuple[str, ...]]] = {
    "tool": ("networks",),
    "server": ("networks", "command", "env", "folder", "memory_mb"),
}
_PATH: Final = re.compile(r" - at `\$(?:\[\.\.\.\])?\.?([^`]*)`$")
_NAMED: Final = re.compile(r"`([a-z_]+)`$|^`([a-z_]+)`|^(headers\.[A-Za-z0-9-]+)")

AnyTable = HttpTool | McpServerTable


def read_table(kind: AddedKind, name: str, table: Mapping[str, Any]) -> AnyTable:
    """Returns a tool or server of its table, whose headers' values are secrets. Raises BadInput that names the field;
    values of headers are in no error."""
    for field in _OPERATORS[kind]:
        if field in table:
            raise _wrong(f"`{field}` is the operator's: only the tools file has it", field)
    if kind == "tool" and table.get("kind", "http") != "http":
        raise _wrong('`kind` is "http": code is the operator\'s, only the tools file has it', "kind")
    headers = table.get("headers")
    if isinstance(headers, dict) and len(headers) > HEADERS_MAX:
        raise _wrong(f"`headers` has at most {HEADERS_MAX} entries", "headers")
    for header, value in headers.items() if isinstance(headers, dict) else ():
        if not isinstance(value, str):
            raise _wrong(f"headers.{header} is a text: files and variables are the operator's", f"headers.{header}")
        if value == HIDDEN:
            raise _wrong(
                f"headers.{header} is needed again: {HIDDEN} stands in place of its value", f"headers.{header}"
            )
    try:
        if kind == "tool":
            given = {name: {**table, "kind": "http"}}
            read: AnyTable = msgspec.convert(given, dict[Name, HttpTool])[name]
        else:
            read = msgspec.convert({name: table}, dict[Label, McpServerTable])[name]
    except msgspec.ValidationError as error:
        param = _field(str(error)) or NAME_PARAMS[kind]
        raise _wrong(reason_of(error).replace(" - at `key` in `$`", ""), param) from None
    return msgspec.structs.replace(read, headers={each: SecretText(value) for each, value in read.headers.items()})


def table_schema(kind: AddedKind) -> dict[str, Any]:
    """Returns the JSON Schema of the tables that `read_table` takes: that of the tools file's without what is the
    operator's."""
    table = HttpTool if kind == "tool" else McpServerTable
    schema = msgspec.json.schema_components([table])[1][table.__name__]["properties"]
    fields: dict[str, Any] = {name: field for name, field in schema.items() if name not in _OPERATORS[kind]}
    fields["url"].pop("default", None)
    fields["headers"] |= {"additionalProperties": {"type": "string"}, "maxProperties": HEADERS_MAX}
    return {"type": "object", "properties": fields, "required": ["url"], "additionalProperties": False}


def taken_by_file(file: ToolsFile, tenant: TenantId, kind: AddedKind, name: str) -> bool:
    """Returns whether the file has, for the tenant or for all tenants, a tool or server of this name, or one that it
    would be mistaken for: a tool `LABEL` or `LABEL__NAME` and a server `LABEL`."""
    tables = [file, *([file.tenants[tenant]] if tenant in file.tenants else ())]
    if kind == "server":
        return any(name in table.servers or name in map(server_of, table.tools) for table in tables)
    return any(name in table.tools or server_of(name) in table.servers for table in tables)


def _why_left_out(
    file: ToolsFile, rules: AddressRules, tenant: TenantId, kind: AddedKind, name: str, url: str
) -> str | None:
    """Returns why the file leaves out an added tool or server; None if it does not."""
    if taken_by_file(file, tenant, kind, name):
        return "the file has this name"
    return None if rules.permits_url(url) else "its address is not permitted"


def has_own_server(file: ToolsFile, tenant: str, label: str) -> bool:
    """Returns whether the file has an MCP server of the tenant's own with this label."""
    return tenant in file.tenants and label in file.tenants[tenant].servers


class AddedToolRules:
    """The port `AddedToolCheck`, by the present tools file."""

    def __init__(self, file: ToolsFile) -> None:
        self.file = file

    def check(self, tenant: TenantId, tool: AddedTool) -> None:
        if tool.kind == "tool" and tool.name in (CODE_INTERPRETER, FILE_SEARCH):
            raise _wrong(f"The name {tool.name!r} is of a tool that the server itself has", "name")
        read = read_table(tool.kind, tool.name, tool.table)
        if not AddressRules(self.file.networks).permits_url(read.url):
            raise _wrong(f"`url`: {NOT_PERMITTED}", "url")
        if taken_by_file(self.file, tenant, tool.kind, tool.name):
            what = "tool" if tool.kind == "tool" else "MCP server"
            raise Conflict(
                "tool_exists",
                f"The operator's tools file has {tool.name!r}: name the {what} otherwise.",
                param=NAME_PARAMS[tool.kind],
            )

    def left_out(self, tenant: TenantId, tool: AddedTool) -> str | None:
        try:
            read = read_table(tool.kind, tool.name, tool.table)
        except BadInput as error:
            return f"this release refuses it: {error.public_message}"
        return _why_left_out(self.file, AddressRules(self.file.networks), tenant, tool.kind, tool.name, read.url)

    def has_server(self, tenant: TenantId, label: str) -> bool:
        return has_own_server(self.file, tenant, label)

    def table_schema(self, kind: AddedKind) -> dict[str, Any]:
        return table_schema(kind)


class MergedTools(ToolsFile, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tools of the file with those that were added. Its parts were checked before."""

    def __post_init__(self) -> None:
        pass


class ToolSources:
    """The tools of the file and of the store. `apply` gets both together after each change."""

    def __init__(self, file: ToolsFile, apply: Callable[[ToolsFile], None]) -> None:
        self._file = file
        self._apply = apply
        self._added: dict[TenantId, TenantTools] = {}
        self._version = 0
        self._left_out: set[tuple[TenantId, AddedKind, str, str]] = set()

    def put_file(self, file: ToolsFile) -> None:
        """Takes another version of the file."""
        self._file = file
        self._apply(self._merged())

    async def has_server(self, store: AddedToolStore, owner: str, label: str) -> bool:
        """Returns whether the file, or the store now, has an MCP server with this owner and label. Raises
        Unavailable."""
        if not owner or has_own_server(self._file, owner, label):
            return True
        added = await store.tools_of(TenantId(owner))
        return not added.readable or added.find("server", label) is not None

    async def look(self, store: AddedToolStore) -> None:
        """Takes what was changed in the store since the last look; if the store is away, it is taken later."""
        try:
            await self._look(store)
        except SessileError as error:
            log.warning("added_tools_unavailable", error=error.code)

    async def _look(self, store: AddedToolStore) -> None:
        begun = self._version
        while changes := await store.changes(after=self._version, limit=PAGE):
            for tools, tables in zip(changes, await asyncio.to_thread(list, map(_tables_of, changes)), strict=True):
                self._added.pop(tools.tenant, None)
                if tools.tools:
                    self._added[tools.tenant] = tables
                self._version = tools.version
        if self._version == begun:
            return
        while True:  # all tools of all tenants: it takes time and runs in a thread
            file = self._file
            merged = await asyncio.to_thread(self._merged)
            if self._file is file:
                return self._apply(merged)

    async def follow(self, store: AddedToolStore) -> None:
        """Looks every `LOOK_S` until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look(store)

    def _merged(self) -> ToolsFile:
        file, rules, connected = self._file, AddressRules(self._file.networks), 0
        tenants, left_out = dict(file.tenants), set[tuple[TenantId, AddedKind, str, str]]()

        def usable(tenant: TenantId, kind: AddedKind, name: str, url: str) -> bool:
            why = _why_left_out(file, rules, tenant, kind, name, url)
            if why is None and kind == "server" and connected >= SERVERS_MAX:
                why = f"this replica has {SERVERS_MAX} of them"
            if why is not None:
                left_out.add((tenant, kind, name, why))
            return why is None

        for tenant, added in self._added.items():
            own = file.tenants.get(tenant, TenantTools())
            tools = {
                name: each
                for name, each in added.tools.items()
                if isinstance(each, HttpTool) and usable(tenant, "tool", name, each.url)
            }
            servers = {name: each for name, each in added.servers.items() if usable(tenant, "server", name, each.url)}
            connected += len(servers)
            offer = [name for name in added.offer if name not in own.offer and (name in tools or name in servers)]
            tenants[tenant] = msgspec.structs.replace(
                own, offer=(*own.offer, *offer), tools={**own.tools, **tools}, servers={**own.servers, **servers}
            )
        for tenant, kind, name, why in sorted(left_out - self._left_out):
            log.warning("added_tool_left_out", tenant=tenant, kind=kind, tool=name, reason=why)
        self._left_out = left_out
        return MergedTools(networks=file.networks, tools=file.tools, servers=file.servers, tenants=tenants)


def _tables_of(added: AddedTools) -> TenantTools:
    """Reads the tables of a set; one that cannot be read is left out. It takes time and runs in a thread."""
    read = dict[AddedKind, dict[str, Any]](tool={}, server={})
    for each in added.tools:
        try:
            read[each.kind][each.name] = read_table(each.kind, each.name, each.table)
        except BadInput as error:  # of another release
            log.warning("added_tool_refused", tenant=added.tenant, kind=each.kind, tool=each.name, param=error.param)
    offer = tuple(each.name for each in added.tools if each.offer)
    return TenantTools(offer=offer, tools=read["tool"], servers=read["server"])


def _wrong(message: str, param: str) -> BadInput:
    return BadInput("invalid_request", f"{message}.", param=param)


def _field(problem: str) -> str:
    """Returns the field that msgspec's error is about; "" for an error about the name itself."""
    path = _PATH.search(problem)
    if path is None or "`key`" in problem:
        return "headers" if ".headers" in problem else ""
    if path[1]:
        return path[1].replace("[...]", "")
    named = _NAMED.search(_PATH.sub("", problem))
    return next((each for each in named.groups() if each), "") if named is not None else ""
