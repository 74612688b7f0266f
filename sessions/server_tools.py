"""The vocabulary of tools that the server carries out: their definitions, the calls that are sent, and the results."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Final, Literal, NamedTuple

import msgspec

from sessions.model.types import CallId, Principal, ResponseId, RunFile, SearchScope, SessionKey, Tool


class ToolProgress(NamedTuple):
    """The progress of a call, as its tool reports it."""

    progress: float
    total: float | None = None
    message: str | None = None


ReportProgress = Callable[[ToolProgress], None]
SearchCheck = Callable[[Principal, SearchScope], Awaitable[None]]
"""Raises NotFound if a scope names what the principal does not see, or what calls for its user could not search."""
FileCheck = Callable[[Principal, str], Awaitable[None]]
"""Raises NotFound if there is no file of this id that the principal may see."""
Outcome = Literal["done", "failed", "not_sent", "unknown"]
CODE_INTERPRETER: Final = "code_interpreter"
FILE_SEARCH: Final = "file_search"
"""The names of the tools that OpenAI's API has as types of their own."""


class ServerTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a tenant, in its present version. `takes_keys`: a call that is repeated under the same key has its
    effect only once."""

    tool: Tool
    takes_keys: bool = False
    approval: bool = False  # whether somebody has to approve each call
    unavailable: str = ""  # why this replica cannot call it; "": it can
    read_only: bool = False  # whether it says that it changes nothing
    check_search: SearchCheck | None = None  # checks the scope that a client gives its calls; None: it takes none
    check_file: FileCheck | None = None  # checks a file that a client gives its calls; None: it takes no files


class CallFile(NamedTuple):
    """A file of the session for a call: one that its client gave the tool, or that a message or an earlier run brought.
    `name` is its path in the folder of that run, or the name in the message; "" stands for the stored one. `replaces`
    is the id of the file that runs have made it from, where a client brought that one."""

    file_id: str
    origin: Literal["tool", "message", "run"]
    name: str = ""
    replaces: str = ""


class ToolRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call to be sent. `execution_id` is the same each time that the same call is sent, whichever replica sends
    it."""

    key: SessionKey
    response_id: ResponseId
    call_id: CallId
    name: str
    arguments: str  # JSON
    execution_id: str
    user: str | None = None  # the session's, whoever works in it, for a tool that takes files; else the caller's
    search: SearchScope | None = None  # of a call of `file_search`, where its client has narrowed it
    files: tuple[CallFile, ...] = ()  # of a call of a tool that takes files, oldest first


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call. The outcome `unknown` means that it was sent, and may or may not have had its effect."""

    outcome: Outcome
    output: str
    files: tuple[RunFile, ...] = ()  # stored files that the call has written
    is_broken: bool = False  # whether the tool itself failed, and would whichever replica sends the call


def canonical(arguments: str) -> str:
    """Returns JSON arguments in a canonical form, the same for all spellings. Raises ValueError for a text that is not
    JSON."""
    return json.dumps(json.loads(arguments), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
