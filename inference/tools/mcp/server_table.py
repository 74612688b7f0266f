"""One MCP server as the tools file has it: how it is reached, what of it is taken, what is believed. Pure.

[servers.files]                      # its tools are `files__NAME`
command = ["/usr/bin/files-mcp", "/srv"]    # or `url`
env.TOKEN = {file = "/run/secrets/files"}   # all that it gets, beside PATH
allow = ["read", "list"]             # of the tools that it lists, by its own names; absent: all
approve = ["write"]                  # somebody has to agree to each call of these; true: of all
idempotent = ["read"]                # calls of these may be sent again
trust_hints = false                  # what it says itself of that (`readOnlyHint`, `idempotentHint`)
changes = "hold"                     # "take": a tool that says something else than at first is shown all the same
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from inference.tools.secrets import HeaderName, Secret, check_headers

SEPARATOR: Final = "__"
TOOLS_MAX: Final = 512
OwnName = Annotated[str, Meta(min_length=1, max_length=256)]
OwnNames = Annotated[tuple[OwnName, ...], Meta(max_length=TOOLS_MAX)]
EnvironmentName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$(?!\n)")]


class McpServerTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server: a command that runs here, or a URL."""

    command: Annotated[tuple[Annotated[str, Meta(max_length=4_096)], ...], Meta(max_length=64)] = ()
    env: dict[EnvironmentName, Secret] = {}
    folder: str = ""
    memory_mb: Annotated[int, Meta(ge=16, le=1_048_576)] = 2_048
    url: Annotated[str, Meta(max_length=2_048)] = ""
    headers: dict[HeaderName, Secret] = {}
    allow: OwnNames | None = None
    approve: bool | OwnNames = False
    idempotent: OwnNames = ()
    trust_hints: bool = False
    changes: Literal["hold", "take"] = "hold"
    tools_max: Annotated[int, Meta(ge=1, le=TOOLS_MAX)] = 128
    timeout_s: Annotated[float, Meta(gt=0, le=300)] = 30.0
    result_bytes: Annotated[int, Meta(ge=64, le=1_000_000)] = 65_536
    retries: Annotated[int, Meta(ge=0, le=8)] = 2  # of calls that may be sent again
    concurrency: Annotated[int, Meta(ge=1, le=1_000)] = 16  # calls of a tenant at the same time, at each replica

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError("an MCP server has a `command` or a `url`")
        if self.command and self.headers:
            raise ValueError("`headers` are of servers with a `url`; a command has `env`")
        if self.url and (self.env or self.folder):
            raise ValueError("`env` and `folder` are of servers with a `command`")
        if any("\0" in word for word in self.command) or not all(self.command[:1]):
            raise ValueError("`command` is a program and its arguments")
        check_headers(self.headers)

    def asks(self, own_name: str) -> bool:
        """Returns whether somebody has to agree to each call of this tool."""
        return self.approve if isinstance(self.approve, bool) else own_name in self.approve

    def repeatable(self, own_name: str, *, hinted: bool) -> bool:
        """Returns whether a call of this tool may be sent again. `hinted`: whether the server itself says so, which
        counts only with `trust_hints`."""
        return own_name in self.idempotent or (self.trust_hints and hinted)
