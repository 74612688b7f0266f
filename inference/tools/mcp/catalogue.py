"""Takes over what an MCP server lists: names made ours, descriptions made plain, schemas bounded, and all of it held to
what was agreed to before.

Everything is a stranger's. A name becomes `LABEL__name`, of the signs that models' tools may have; where that is not
its own name any more, a digest of it goes with it, so that no two become one. A tool whose description, schema or hints
differ from what was taken up first is held, and not shown to models, until somebody agrees (a *rug pull*: a harmless
tool that says something else once people trust it). Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import mcp.types
import msgspec

from inference.tools.mcp.plain_words import plain_words
from inference.tools.mcp.server_table import SEPARATOR, McpServerTable
from sessions.model.types import McpSource, Tool
from sessions.server_tools import ServerTool

NAME_LENGTH_MAX: Final = 64
OWN_NAME_LENGTH_MAX: Final = 256
DESCRIPTION_LENGTH_MAX: Final = 4_096
SCHEMA_BYTES_MAX: Final = 65_536
SCHEMA_DEPTH_MAX: Final = 32
_DIGEST_SIGNS: Final = 8
_NOT_OURS: Final = re.compile(r"[^A-Za-z0-9_-]")

Held = str
"""The reason why a tool is not shown: `changed`, `new`, or what is wrong with the tool."""


class McpTool(NamedTuple):
    """A tool as it is shown to models. `name` is ours, `own_name` the server's."""

    name: str
    own_name: str
    description: str
    schema: dict[str, Any]
    digest: str
    read_only: bool
    idempotent: bool

    def server_tool(self, label: str, table: McpServerTable) -> ServerTool:
        source = McpSource(server_label=label, tool=self.own_name)
        about = Tool(
            name=self.name, description=self.description or None, parameters=self.schema, server=True, mcp=source
        )
        takes_keys = table.repeatable(self.own_name, hinted=self.idempotent)
        return ServerTool(
            tool=about, takes_keys=takes_keys, approval=table.asks(self.own_name), read_only=self.read_only
        )


def shown_name(label: str, own_name: str) -> str:
    """Returns the name by which models call a server's tool."""
    plain = f"{label}{SEPARATOR}{_NOT_OURS.sub('_', own_name)}"
    if plain == f"{label}{SEPARATOR}{own_name}" and len(plain) <= NAME_LENGTH_MAX:
        return plain
    digest = hashlib.sha256(own_name.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_SIGNS]
    return f"{plain[: NAME_LENGTH_MAX - _DIGEST_SIGNS - 1]}_{digest}"


def digest_of(listed: mcp.types.Tool) -> str:
    """Returns a digest of everything about a tool that a model or an operator relies on."""
    hints = listed.annotations or mcp.types.ToolAnnotations()
    about = (listed.name, listed.description or "", listed.input_schema, bool(hints.read_only_hint))
    encoded = msgspec.json.encode((*about, bool(hints.idempotent_hint)), order="deterministic")
    return hashlib.sha256(encoded).hexdigest()


def taken_over(label: str, listed: Iterable[mcp.types.Tool]) -> tuple[list[McpTool], dict[str, Held]]:
    """Returns the tools that can be shown, and for the others, by their own names made plain, why they cannot be."""
    tools: dict[str, McpTool] = {}
    refused: dict[str, Held] = {}
    for each in listed:
        problem = _problem(each)
        name = "" if problem else shown_name(label, each.name)
        if not problem and name in tools:
            problem = "two tools have this name"
        if problem:
            refused[plain_words(each.name, NAME_LENGTH_MAX)] = problem
            continue
        hints = each.annotations or mcp.types.ToolAnnotations()
        tools[name] = McpTool(
            name=name,
            own_name=each.name,
            description=plain_words(each.description or "", DESCRIPTION_LENGTH_MAX),
            schema=_plain_schema(each.input_schema),
            digest=digest_of(each),
            read_only=bool(hints.read_only_hint),
            idempotent=bool(hints.idempotent_hint or hints.read_only_hint),
        )
    return list(tools.values()), refused


def _problem(listed: mcp.types.Tool) -> str:
    if not listed.name or len(listed.name) > OWN_NAME_LENGTH_MAX:
        return f"its name has no or more than {OWN_NAME_LENGTH_MAX} characters"
    if plain_words(listed.name, OWN_NAME_LENGTH_MAX) != listed.name or "\n" in listed.name or "\t" in listed.name:
        return "its name has signs that cannot be seen"
    if not _depth_within(listed.input_schema, SCHEMA_DEPTH_MAX):
        return f"its schema is nested more than {SCHEMA_DEPTH_MAX} deep"
    try:
        size = len(msgspec.json.encode(listed.input_schema))
    except (msgspec.EncodeError, RecursionError, TypeError, UnicodeEncodeError):
        return "its schema cannot be written as JSON"
    if size > SCHEMA_BYTES_MAX:
        return f"its schema has more than {SCHEMA_BYTES_MAX} bytes"
    if listed.input_schema.get("type", "object") != "object":
        return "its schema is not one of an object"
    return ""


def _depth_within(value: Any, depth: int) -> bool:
    layer = [value]
    for _ in range(depth):
        layer = [
            inner
            for each in layer
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not layer:
            return True
    return False


_PROSE: Final = frozenset({"description", "title", "$comment"})


def _plain_schema(value: Any) -> Any:
    """Returns a schema whose descriptions are made plain; its constraints stay as they are."""
    if isinstance(value, dict):
        return {
            key: plain_words(each, DESCRIPTION_LENGTH_MAX)
            if key in _PROSE and isinstance(each, str)
            else _plain_schema(each)
            for key, each in value.items()
        }
    return [_plain_schema(each) for each in value] if isinstance(value, list) else value


class PinReview(NamedTuple):
    """The result of comparing listed tools with agreements. `shown` go to models; `held`, by name, are not shown, with
    the reason; `first` are the digests of shown tools that are to be stored as agreed."""

    shown: dict[str, McpTool]
    held: dict[str, Held]
    first: dict[str, str]


def review(tools: Iterable[McpTool], agreed: Mapping[str, str], *, begun: bool, takes_changes: bool) -> PinReview:
    """Compares listed tools with the digests that somebody agreed to, by our names for the tools. `begun`: the server
    has had tools before, so that a tool without an agreement is held as new. With `takes_changes` no tool is held."""
    shown, held, first = {}, {}, {}
    for tool in tools:
        known = agreed.get(tool.name)
        if known == tool.digest:
            shown[tool.name] = tool
        elif takes_changes or (known is None and not begun):
            shown[tool.name] = tool
            first[tool.name] = tool.digest
        else:
            held[tool.name] = "new" if known is None else "changed"
    return PinReview(shown, held, first)


class Listing(NamedTuple):
    """The tools that a server listed last. `held`: for each tool that is not shown, the reason."""

    shown: Mapping[str, McpTool] = {}
    held: Mapping[str, Held] = {}
    waiting: Mapping[str, McpTool] = {}
    """The held tools that somebody may agree to."""
