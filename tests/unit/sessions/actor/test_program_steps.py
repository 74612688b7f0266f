"""What a program is run on from: its chain, its functions, and a snapshot that is not what the log says."""

from __future__ import annotations

import msgspec
import pytest

from sessions.actor.program_steps import callable_tools, next_point, program_step
from sessions.machine.tool_turns import ServerCall, ServerCalls
from sessions.model.types import LOCAL_PRINCIPAL, CallId, ResponseId, SessionId, SessionKey, TenantId, Tool
from sessions.server_tools import ProgramSuspended, ServerTool, ToolRequest

ARGUMENTS = '{"code": "look-it(1)"}'
LOOK = Tool(name="look-it", parameters={"type": "object", "properties": {"at": {}}}, server=True)
PROGRAM, CLIENTS = Tool(name="program", server=True), Tool(name="theirs")
NAMED = (LOOK, PROGRAM, CLIENTS, Tool(name="gone", server=True))
RUNS = ServerTool(tool=PROGRAM, program=True)


def find(name: str) -> ServerTool | None:
    return {"look-it": ServerTool(tool=LOOK), "program": RUNS}.get(name)


def request() -> ToolRequest:
    return ToolRequest(
        key=SessionKey(TenantId("t"), SessionId("s")),
        response_id=ResponseId("r"),
        call_id=CallId("c"),
        name="program",
        arguments=ARGUMENTS,
        execution_id="e",
    )


def calls(count: int) -> ServerCalls:
    """A program that has made so many calls, all but the last with their outputs."""
    server = ServerCalls(
        calls={CallId("c"): ServerCall(call_id=CallId("c"), name="program")}, principal=LOCAL_PRINCIPAL
    )
    for number in range(count):
        made = server.made_by(CallId("c"))
        for each in made:
            each.output = "blue"
        came_to = ProgramSuspended(
            name="look_it", arguments=f'{{"at": {number}}}', version="1", snapshot=b"%d" % number, printed=""
        )
        name = CallId(f"c.{number + 1}")
        server.calls[name] = ServerCall(
            call_id=name,
            name="look-it",
            program=CallId("c"),
            arguments=came_to.arguments,
            point=next_point(ARGUMENTS, made, came_to, "look-it"),
        )
    return server


def test_a_program_may_call_the_sessions_other_tools_of_the_server() -> None:
    assert callable_tools(RUNS, NAMED, find) == {"look_it": "look-it"}
    assert callable_tools(msgspec.structs.replace(RUNS, calls=()), NAMED, find) == {}


def test_a_step_has_what_the_calls_were_answered() -> None:
    step = program_step(request(), calls(3), RUNS, NAMED, find)
    assert step.functions == {"look_it": ("at",)} and step.point is not None and step.point.snapshot == b"2"
    assert [(each.name, each.output) for each in step.done] == [("look_it", "blue")] * 2 + [("look_it", "")]
    assert program_step(request(), calls(0), RUNS, NAMED, find).point is None


@pytest.mark.parametrize("damage", ["snapshot", "output", "arguments", "version", "chain", "none"])
def test_a_chain_that_does_not_hold_has_the_program_run_anew(damage: str) -> None:
    server = calls(3)
    first, second, third = server.made_by(CallId("c"))
    assert first.point is not None and third.point is not None
    match damage:
        case "snapshot":
            third.point = msgspec.structs.replace(third.point, snapshot=b"other")
        case "output":
            first.output = "green"
        case "arguments":
            second.arguments = "{}"
        case "version":
            first.point = msgspec.structs.replace(first.point, version="2")
        case "chain":
            third.point = msgspec.structs.replace(third.point, chain=b"")
        case _:
            second.point = None
    step = program_step(request(), server, RUNS, NAMED, find)
    assert step.point is None and len(step.done) == 3
