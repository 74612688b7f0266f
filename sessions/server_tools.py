"""The vocabulary of tools that the server carries out: what a session is told of one, what is sent, what comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import msgspec

from sessions.model.types import CallId, ProgramPoint, ResponseId, SessionKey, Tool


class ToolProgress(NamedTuple):
    """How far a call has come, in the tool's words."""

    progress: float
    total: float | None = None
    message: str | None = None


ReportProgress = Callable[[ToolProgress], None]
Outcome = Literal["done", "failed", "not_sent", "unknown"]
CODE_INTERPRETER: Final = "code_interpreter"
"""The name of the tool that OpenAI's API has as a type of its own."""


class ServerTool(msgspec.Struct, frozen=True, kw_only=True):
    """One tool of a tenant's, as it is now. `takes_keys`: the same call under the same key has its effect once."""

    tool: Tool
    takes_keys: bool = False
    approval: bool = False  # somebody has to agree to each call
    program: bool = False  # it runs programs, which call other tools
    calls: tuple[str, ...] | None = None  # those that its programs may call; None: all of the session's
    calls_max: int = 0  # of one program
    unavailable: str = ""  # why this replica cannot carry it out
    read_only: bool = False  # it says that it changes nothing


class ToolRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call as it is sent. The same call has the same `execution_id`, whoever sends it and however often."""

    key: SessionKey
    response_id: ResponseId
    call_id: CallId
    name: str
    arguments: str  # JSON
    execution_id: str
    user: str | None = None


class ProgramCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a program has made, with what it was answered."""

    name: str
    arguments: str  # JSON
    output: str
    is_error: bool = False


class ProgramStep(msgspec.Struct, frozen=True, kw_only=True):
    """A program that is to go on: from `point`, or from its beginning, with what its calls so far were answered."""

    request: ToolRequest
    functions: dict[str, tuple[str, ...]]  # that it may call, and the names of their parameters in order
    done: tuple[ProgramCall, ...] = ()
    point: ProgramPoint | None = None


class ProgramSuspended(msgspec.Struct, frozen=True, kw_only=True):
    """A program has come to a call."""

    name: str
    arguments: str
    version: str
    snapshot: bytes
    printed: str


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a call. `unknown`: it was sent, and may or may not have had its effect."""

    outcome: Outcome
    output: str


def canonical(arguments: str) -> str:
    """Arguments in the one form that all their spellings share. Raises ValueError for what is no JSON."""
    return json.dumps(json.loads(arguments), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
