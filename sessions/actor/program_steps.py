"""Finds in the log the point from which a program is to be resumed, and the hash that its next call adds to the
program's chain.

Pure. The chain proves that a program's snapshot is genuine. A snapshot whose chain is broken is not used: the program
is then run from its beginning on the recorded answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

import msgspec
import structlog

from sessions.machine.tool_turns import ServerCall, ServerCalls
from sessions.model.types import ProgramPoint, Tool
from sessions.server_tools import ProgramCall, ProgramStep, ProgramSuspended, ServerTool, ToolRequest

log = structlog.get_logger(__name__)

Find = Callable[[str], ServerTool | None]


def identifier(name: str) -> str:
    """Returns the name that a program calls a tool by: hyphens become underscores."""
    return name.replace("-", "_")


def callable_tools(program: ServerTool, named: Sequence[Tool], find: Find) -> dict[str, str]:
    """Returns the session's other server tools that a program may call: from the function names in the program to the
    tools' names."""
    functions = {}
    for tool in named:
        there = find(tool.name) if tool.server is True else None
        if there is None or there.program or there.unavailable:
            continue
        if program.calls is None or tool.name in program.calls:
            functions[identifier(tool.name)] = tool.name
    return functions


def program_step(
    request: ToolRequest, server: ServerCalls, program: ServerTool, named: Sequence[Tool], find: Find
) -> ProgramStep:
    """Returns how far a program has come by the log: its answered calls, and the point to resume from; None as the
    point if the program must begin anew."""
    functions = {}
    for function, name in callable_tools(program, named, find).items():
        tool = next(each for each in named if each.name == name)
        properties = (tool.parameters or {}).get("properties")
        functions[function] = tuple(properties) if isinstance(properties, dict) else ()
    made = server.made_by(request.call_id)
    done = tuple(
        ProgramCall(
            name=identifier(each.name), arguments=each.arguments, output=each.output or "", is_error=each.is_error
        )
        for each in made
    )
    point = made[-1].point if made else None
    if point is not None and not _holds(request.arguments, made):
        log.error("program_chain_broken", session=request.key.session, response=request.response_id)
        point = None
    return ProgramStep(request=request, functions=functions, done=done, point=point)


def next_point(arguments: str, made: Sequence[ServerCall], came_to: ProgramSuspended, name: str) -> ProgramPoint:
    """Returns the point at which a program now waits: `came_to` is its state at its next call, of the tool `name`, and
    `made` are its earlier calls."""
    digest = snapshot_hash(came_to.snapshot)
    before, answered = _end(arguments, made)
    return ProgramPoint(
        version=came_to.version,
        chain=next_link(before, answered, came_to.version, digest, name, came_to.arguments),
        digest=digest,
        snapshot=came_to.snapshot,
        printed=came_to.printed,
    )


def _end(arguments: str, made: Sequence[ServerCall]) -> tuple[bytes, tuple[str, bool] | None]:
    if not made or made[-1].point is None:
        return program_hash(arguments), None
    return made[-1].point.chain, (made[-1].output or "", made[-1].is_error)


def _holds(arguments: str, made: Sequence[ServerCall]) -> bool:
    """Returns whether a program's chain is unbroken: each call's link is the hash of everything before it, and the
    digest in the newest call is that of its snapshot."""
    for index, call in enumerate(made):
        if call.point is None:
            return False
        before, answered = _end(arguments, made[:index])
        expected = next_link(before, answered, call.point.version, call.point.digest, call.name, call.arguments)
        if expected != call.point.chain:
            return False
    newest = made[-1].point
    return newest is not None and snapshot_hash(newest.snapshot) == newest.digest


def program_hash(arguments: str) -> bytes:
    """Returns the hash that a program's chain begins with: that of its arguments."""
    return sha256(arguments.encode()).digest()


def snapshot_hash(snapshot: bytes) -> bytes:
    return sha256(snapshot).digest()


def next_link(
    before: bytes, answered: tuple[str, bool] | None, version: str, digest: bytes, name: str, arguments: str
) -> bytes:
    """Returns the hash that the next call adds to the chain. It covers the chain so far (`before`), the answer of the
    call before, and the state that the program has reached."""
    return sha256(msgspec.msgpack.encode((before, answered, version, digest, name, arguments))).digest()
