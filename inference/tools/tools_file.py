"""Reads the tools file: what the server carries out for models, HTTP functions, code and MCP servers, and
which tenants have them.

    networks = ["10.1.0.0/16"]           # private networks that tools may be in

    [tools.weather]
    description = "The weather in a city, now"
    url = "https://weather.example.com/now"
    method = "POST"                      # the arguments are its JSON body; of GET and DELETE, its query
    timeout_s = 10
    result_bytes = 65536                 # more of a result is cut off
    approval = "never"                   # "always": somebody has to agree to each call
    idempotency = "key"                  # it takes an Idempotency-Key: one effect for each, however often it is sent
    headers.authorization = {file = "/run/secrets/weather", prefix = "Bearer "}
    parameters = {type = "object", properties = {city = {type = "string"}}, required = ["city"]}

    [tools.code_interpreter]             # Python that the model writes, in a sandbox
    kind = "code"

    [servers.files]                      # an MCP server; its tools are `files__NAME`
    command = ["/usr/bin/files-mcp", "/srv"]

    [tenants.acme]
    allow = ["weather"]                  # of the tools above; absent: all
    offer = ["weather"]                  # its sessions have these without naming them

    [tenants.acme.tools.book]            # a tool of its own
    url = "https://booking.example.com/book"

Pure, but for the files of secrets, which are read for each call. A file
that is malformed is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import Meta

from inference.tools.mcp.server_table import SEPARATOR, McpServerTable
from inference.tools.secrets import HeaderName, Secret, check_headers
from sessions.added_tools import server_of
from sessions.model.json_schema import SchemaFault, judge_schema
from sessions.model.types import TenantId, Tool
from sessions.public_addresses import AddressRules, destination
from sessions.schemas import encode_schema
from sessions.server_tools import CODE_INTERPRETER, ServerTool
from sessions.setting_files import parse_toml

Name = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$(?!\n)")]
Label = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,31}$(?!\n)")]
CODE_MAX: Final = 100_000  # characters
NOT_PERMITTED: Final = (
    "it is neither https:// to a public name or address, nor http:// or https:// to an address (not a name) of"
    " `networks`"
)
_ABOUT_CODE: Final = (
    "Runs Python code and returns what it prints, and the value of its last expression. The user's files are in its"
    " working directory. Files that it writes there go to the user, and are there at the next call. It has no network."
)


class HttpTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="http"):
    """A tool that is an HTTP request."""

    url: Annotated[str, Meta(min_length=1, max_length=2_048)]
    description: Annotated[str, Meta(max_length=4_096)] = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: dict[HeaderName, Secret] = {}
    timeout_s: Annotated[float, Meta(gt=0, le=300)] = 10.0
    result_bytes: Annotated[int, Meta(ge=64, le=1_000_000)] = 65_536
    idempotency: Literal["key", "none"] = "none"
    approval: Literal["never", "always"] = "never"
    retries: Annotated[int, Meta(ge=0, le=8)] = 2  # for a tool that takes idempotency keys
    concurrency: Annotated[int, Meta(ge=1, le=1_000)] = 16  # calls of a tenant at the same time, at each replica

    def __post_init__(self) -> None:
        if self.parameters.get("type") != "object":
            raise ValueError("`parameters` is the JSON Schema of an object")
        for judged in (encode_schema(self.parameters), judge_schema(self.parameters)):
            if isinstance(judged, SchemaFault):
                raise ValueError(f"`parameters`: {judged}")
        try:
            destination(self.url)
        except ValueError as error:
            raise ValueError(f"`url`: {error}") from error
        if "#" in self.url:
            raise ValueError("`url` has a fragment (#...), which is never sent")
        check_headers(self.headers)

    @property
    def fixed(self) -> frozenset[str]:
        """The names of the query parameters in the file's URL, which arguments cannot change."""
        return frozenset(name for name, _ in parse_qsl(urlsplit(self.url).query, keep_blank_values=True))

    def server_tool(self, name: str, unavailable: str = "") -> ServerTool:
        """Returns the tool's description for sessions. `unavailable`: why it cannot be called here; "" if it can."""
        about = Tool(name=name, description=self.description or None, parameters=self.parameters, server=True)
        return ServerTool(
            tool=about,
            takes_keys=self.idempotency == "key",
            approval=self.approval == "always",
            unavailable=unavailable,
        )


class CodeTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="code"):
    """Runs Python that the model writes, in a sandbox."""

    description: Annotated[str, Meta(max_length=4_096)] = ""
    timeout_s: Annotated[float, Meta(gt=0, le=300)] = 30.0
    cpu_s: Annotated[float, Meta(gt=0, le=300)] = 30.0
    memory_mb: Annotated[int, Meta(ge=16, le=65_536)] = 512
    processes: Annotated[int, Meta(ge=1, le=256)] = 8
    disk_mb: Annotated[int, Meta(ge=1, le=4_096)] = 64
    files: Annotated[int, Meta(ge=1, le=10_000)] = 256
    kept_files: Annotated[int, Meta(ge=0, le=50)] = 16  # that a run leaves, which become files of its user
    kept_mb: Annotated[int, Meta(ge=1, le=4_096)] = 32  # of these files together
    result_bytes: Annotated[int, Meta(ge=64, le=1_000_000)] = 65_536
    python: Annotated[str, Meta(max_length=4_096)] = ""  # another CPython than the server's, with packages
    approval: Literal["never", "always"] = "never"
    concurrency: Annotated[int, Meta(ge=1, le=1_000)] = 4  # runs of a tenant at the same time, at each replica

    def server_tool(self, name: str, unavailable: str = "") -> ServerTool:
        """Returns the tool's description for sessions. `unavailable`: why it cannot be called here; "" if it can."""
        code = {"type": "string", "description": "The Python code.", "minLength": 1, "maxLength": CODE_MAX}
        parameters = {
            "type": "object",
            "properties": {"code": code},
            "required": ["code"],
            "additionalProperties": False,
        }
        tool = Tool(name=name, description=self.description or _ABOUT_CODE, parameters=parameters, server=True)
        return ServerTool(
            tool=tool,
            takes_keys=True,
            approval=self.approval == "always",
            unavailable=unavailable,
        )


AnyTool = HttpTool | CodeTool


class TenantTools(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tools of one tenant."""

    allow: tuple[Name, ...] | None = None
    offer: tuple[Name, ...] = ()
    tools: dict[Name, AnyTool] = {}
    servers: dict[Label, McpServerTable] = {}


class ToolsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole tools file."""

    networks: tuple[str, ...] = ()
    tools: dict[Name, AnyTool] = {}
    servers: dict[Label, McpServerTable] = {}
    tenants: dict[str, TenantTools] = {}

    def __post_init__(self) -> None:
        rules = AddressRules(self.networks)
        for place, tool in self.all_tools():
            if place.endswith(f".{CODE_INTERPRETER}") and not isinstance(tool, CodeTool):
                raise ValueError(f'{place}: this name is for kind = "code"')
            if isinstance(tool, HttpTool) and not rules.permits_url(tool.url):
                raise ValueError(f"{place}.url: {NOT_PERMITTED}")
        for (owner, label), server in self.all_servers():
            if server.url and not rules.permits_url(server.url):
                whose = f"tenants.{owner}.servers.{label}" if owner else f"servers.{label}"
                raise ValueError(f"{whose}.url: {NOT_PERMITTED}")
        for tenant, table in self.tenants.items():
            for name in table.allow or ():
                if name not in self.tools and server_of(name) not in self.servers:
                    raise ValueError(f"tenants.{tenant}.allow: there is no [tools.{name}] and no such MCP server")
            for name in table.offer:
                if self.find(TenantId(tenant), name) is None and not self.has_server(TenantId(tenant), name):
                    raise ValueError(f"tenants.{tenant}.offer: it has no tool {name!r}")

    def find(self, tenant: TenantId, name: str) -> AnyTool | None:
        """Returns a tenant's tool of this name; its own tools take precedence over those of all tenants."""
        table = self.tenants.get(tenant)
        if table is not None and name in table.tools:
            return table.tools[name]
        if table is not None and table.allow is not None and name not in table.allow:
            return None
        return self.tools.get(name)

    def all_tools(self) -> Iterator[tuple[str, AnyTool]]:
        """Yields all tools, each with its place in the file: `tools.NAME`, or `tenants.TENANT.tools.NAME`."""
        tables: dict[str, ToolsFile | TenantTools] = {"": self}
        tables |= {f"tenants.{tenant}.": table for tenant, table in self.tenants.items()}
        for whose, table in tables.items():
            for name, tool in table.tools.items():
                yield f"{whose}tools.{name}", tool

    def all_servers(self) -> Iterator[tuple[tuple[str, str], McpServerTable]]:
        """Yields all MCP servers, each with its owner ("": all tenants) and its label."""
        for label, server in self.servers.items():
            yield ("", label), server
        for tenant, table in self.tenants.items():
            for label, server in table.servers.items():
                yield (tenant, label), server

    def server(self, tenant: TenantId, label: str) -> tuple[str, McpServerTable] | None:
        """Returns a tenant's MCP server of this label with its owner: the tenant itself, or "" for all tenants."""
        table = self.tenants.get(tenant)
        if table is not None and label in table.servers:
            return tenant, table.servers[label]
        server = self.servers.get(label)
        return None if server is None else ("", server)

    def has_server(self, tenant: TenantId, name: str) -> bool:
        """Returns whether an MCP server that `name` belongs to exists and the tenant may use it. `name` is either a
        tool, `LABEL__name`, which must then be permitted, or a LABEL, of whose tools at least one must be."""
        found = self.server(tenant, server_of(name))
        return found is not None and self.permits(tenant, found[0], name)

    def permits(self, tenant: TenantId, owner: str, name: str) -> bool:
        """Returns whether the tenant may use the tool `LABEL__name`, or, if `name` is a LABEL, at least one tool of
        that server. All tools of the tenant's own servers are permitted; of shared servers those that `allow` lists, as
        tool or as LABEL."""
        table = self.tenants.get(tenant)
        allow = None if owner or table is None else table.allow
        if allow is None or name in allow or server_of(name) in allow:
            return True
        return SEPARATOR not in name and any(server_of(pattern) == name for pattern in allow)

    def offered(self, tenant: TenantId) -> tuple[str, ...]:
        """Returns the tools that a tenant's sessions have without naming them."""
        table = self.tenants.get(tenant)
        return table.offer if table is not None else ()


def read_tools(path: Path) -> ToolsFile:
    """Reads the file. Raises ValueError where it is malformed, OSError where it cannot be read. Blocking."""
    tables = parse_toml(path.read_text())
    for _, kind, _, entry in _entries(tables):
        if kind == "tools" and isinstance(entry, dict):
            entry.setdefault("kind", "http")
    try:
        return msgspec.convert(tables, ToolsFile)
    except msgspec.ValidationError as error:
        raise ValueError(_located(tables, str(error))) from error


def _entries(file: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    """Yields the tools and servers of a file that may be malformed: the table that each is in, whether that has `tools`
    or `servers`, its name, and what it says."""
    tenants = file.get("tenants")
    tables = {"": file}
    if isinstance(tenants, dict):
        tables |= {f"tenants.{name}.": table for name, table in tenants.items() if isinstance(table, dict)}
    for (whose, table), kind in product(tables.items(), ("tools", "servers")):
        entries = table.get(kind)
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            yield f"{whose}{kind}", kind, name, entry


def _located(tables: Mapping[str, Any], problem: str) -> str:
    """Returns an error's text in which the name of the tool or server replaces msgspec's `[...]`."""
    for place, kind, name, entry in _entries(tables):
        try:
            msgspec.convert({name: entry}, dict[Name, AnyTool] if kind == "tools" else dict[Label, McpServerTable])
        except msgspec.ValidationError as error:
            return f"[{place}.{name}]: {reason_of(error)}"
    return problem


def reason_of(error: msgspec.ValidationError) -> str:
    """Returns the text of msgspec's error about a dict of one tool or server, without the dict's own place."""
    return str(error).replace(" - at `$[...]`", "").replace("$[...].", "")
