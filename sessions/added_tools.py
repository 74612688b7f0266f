"""The server tools that a tenant's administrators add over the API, and the port of their store.

A tenant has one set of them, which changes as a whole: a change names the version that it was made from, so that none
is lost. Versions count the changes of all tenants, so that a reader finds what is new by asking for what is later.

A table is what a tool's table in the tools file is, with the values of its headers, which are secrets: `shown` is the
table for people. Does not know what the fields mean (`inference.tools.added_tools` does). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from sessions.model.audit import Audited
from sessions.model.errors import Conflict, Limited
from sessions.model.types import Json, TenantId, UnixMs

AddedKind = Literal["tool", "server"]

ADDED_MAX: Final[dict[AddedKind, int]] = {"tool": 64, "server": 8}  # of a tenant
ADDED_BYTES_MAX: Final = 256 * 1024  # of all tables of a tenant
NAME_PARAMS: Final[dict[AddedKind, str]] = {"tool": "name", "server": "server"}  # how a wrong name is named
HIDDEN: Final = "[hidden]"  # what readers see in place of a header's value


class AddedTool(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP tool, or an MCP server, of one tenant. `revision` is another one after each change; `by` is the key that
    changed it last."""

    kind: AddedKind
    name: str
    table: dict[str, Json]
    offer: bool = False
    revision: str
    at: UnixMs
    by: str

    def __repr__(self) -> str:
        return f"AddedTool({self.kind!r}, {self.name!r})"

    @property
    def shown(self) -> dict[str, Json]:
        """The table without the values of its headers, and whether the tool is offered."""
        table = dict(self.table)
        if isinstance(headers := table.get("headers"), dict):
            table["headers"] = dict.fromkeys(headers, HIDDEN)
        return {**table, "offer": self.offer}


class AddedTools(msgspec.Struct, frozen=True, kw_only=True):
    """All tools that the administrators of one tenant have added. `version` 0: there never were any. A set that is not
    `readable` has no tools; one that replaces it is."""

    tenant: TenantId
    version: int = 0
    tools: tuple[AddedTool, ...] = ()
    readable: bool = True

    def find(self, kind: AddedKind, name: str) -> AddedTool | None:
        return next((tool for tool in self.tools if (tool.kind, tool.name) == (kind, name)), None)

    def with_tool(self, tool: AddedTool) -> AddedTools:
        """Returns the set with `tool` in place of one of its name. Raises Limited, and Conflict (`tool_exists`) for a
        tool that has the name of a server or of a tool of one, or the reverse."""
        others = self.without(tool.kind, tool.name).tools
        for each in others:
            if each.kind != tool.kind and server_of(each.name) == server_of(tool.name):
                raise Conflict(
                    "tool_exists",
                    f"The {each.kind} {each.name!r} was added, whose name would be mistaken for {tool.name!r}.",
                    param=NAME_PARAMS[tool.kind],
                )
        if sum(each.kind == tool.kind for each in others) >= ADDED_MAX[tool.kind]:
            raise Limited("quota_exceeded", f"A tenant adds at most {ADDED_MAX[tool.kind]} {tool.kind}s.")
        return msgspec.structs.replace(self, tools=_sorted((*others, tool)), readable=True)

    def without(self, kind: AddedKind, name: str) -> AddedTools:
        rest = (each for each in self.tools if (each.kind, each.name) != (kind, name))
        return msgspec.structs.replace(self, tools=tuple(rest), readable=True)


class AddedToolStore(Protocol):
    """The added tools of all tenants. Every method raises Unavailable. Tools whose keys are destroyed are gone; a set
    that cannot be read is not `readable`."""

    async def tools_of(self, tenant: TenantId) -> AddedTools: ...

    async def replace(self, tools: AddedTools, audit: Audited | None = None) -> AddedTools:
        """Stores a tenant's tools in place of those with the same version, with an audit row, and returns them with
        their new version. Raises Conflict (`tool_changed`) if they were changed since, Limited (`quota_exceeded`)."""
        ...

    async def changes(self, *, after: int, limit: int) -> Sequence[AddedTools]:
        """Returns the sets that were changed after a version, in the order of their changes."""
        ...

    async def forget(self, tenant: TenantId) -> None:
        """Removes a tenant's tools, readable or not, whatever their version; `changes` has the empty set then."""
        ...


class AddedToolCheck(Protocol):
    """Decides whether a tool may be added beside those of the tools file as it is now."""

    def check(self, tenant: TenantId, tool: AddedTool) -> None:
        """Raises BadInput that names a wrong field, Conflict (`tool_exists`) for a name that the file has."""
        ...

    def left_out(self, tenant: TenantId, tool: AddedTool) -> str | None:
        """Returns why a stored tool is not in force; None if it is, as far as the file decides."""
        ...

    def has_server(self, tenant: TenantId, label: str) -> bool:
        """Returns whether the file has an MCP server of the tenant's own with this label."""
        ...

    def table_schema(self, kind: AddedKind) -> dict[str, Any]:
        """Returns the JSON Schema of the tables that administrators may send."""
        ...


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(tuple[AddedTool, ...]).decode


def encode_tools(tools: AddedTools) -> bytes:
    """Returns the body of a tenant's tools as it is stored. Raises Limited for one that is too large."""
    body = _encode(tools.tools)
    if len(body) > ADDED_BYTES_MAX:
        raise Limited("quota_exceeded", f"All added tools of a tenant have at most {ADDED_BYTES_MAX} bytes together.")
    return body


def decode_tools(tenant: TenantId, version: int, body: bytes) -> AddedTools:
    return AddedTools(tenant=tenant, version=version, tools=_decode(body))


def tools_conflict() -> Conflict:
    return Conflict("tool_changed", "The tools were changed meanwhile: try again.", retryable=True)


def server_of(name: str) -> str:
    """Returns the server in the name of a server's tool, `SERVER__NAME`; the whole of another name."""
    return name.partition("__")[0]


def _sorted(tools: Iterable[AddedTool]) -> tuple[AddedTool, ...]:
    return tuple(sorted(tools, key=lambda each: (each.kind, each.name)))
