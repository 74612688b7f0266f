"""Hostile JSON schemas through every door of a server: each is served or refused with the reason, and nobody waits."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc
import grpc.aio
import pytest

from inference.simulated import SimulatedOptions
from sessions.model import commands as cm
from sessions.model.request import request_of
from sessions.model.types import LOCAL_PRINCIPAL, CommandId, SessionId, TextOptions, Tool
from testbed.server_process import ServerProcess
from tests.support.doors.grpc_door import ENDS, Door, error_of, opened
from tests.support.doors.openai_server import ScriptedEngine
from tests.support.doors.schema_doors import schema_doors, send_all
from tests.support.hostile_schemas import KINDS, hostile_schemas
from transport.grpc_api import sessile_pb2 as pb

COUNT = 9 * len(KINDS)
FAST = SimulatedOptions(step_base_s=0.0001, answer_tokens_mean=5, tools=True)
DOUBLED = {
    "$defs": {
        **{f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(40)},
        "d40": {"type": "object"},
    },
    "type": "object",
    "allOf": [{"$ref": "#/$defs/d0"}],
}
UNSUPPORTED_BY_GRPC = {"grpc format"}
UNSUPPORTED = {"chat format", "responses format"}  # by the simulated engine: refused before anything is looked at
COUNTED = {"type": "object", "properties": {"a": {"type": "array", "minItems": 100_000_000}}}


@pytest.mark.parametrize("seed", [1, 2])
async def test_each_is_served_or_refused_with_the_reason(seed: int) -> None:
    async with opened(FAST) as door, schema_doors(door.assembly.server.port, door.server.address) as doors:
        done = await send_all(doors, [(each.kind, each.schema) for each in hostile_schemas(seed, COUNT)], at_once=4)
    assert len(done) == COUNT and [each for each in done if not each[2].is_fair] == []
    assert sum(outcome.refused_with_reason for _, _, outcome in done) > COUNT / 4


async def test_the_findings_are_refused_at_every_door_with_reason_and_place() -> None:
    async with opened(FAST) as door, schema_doors(door.assembly.server.port, door.server.address) as doors:
        for name in set(doors.names) - UNSUPPORTED:
            doubled, counted = await doors.send(name, DOUBLED), await doors.send(name, COUNTED)
            assert doubled.refused_with_reason, (name, doubled)
            assert "minItems may be 4000 at most (at '/properties/a/minItems')" in counted.message, (name, counted)
        assert door.assembly.engine.stats().counters["decoded_tokens"] == 0  # nothing was paid


def nested(how: str, levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema} if how == "items" else {"allOf": [schema]}
    return {"type": "object", "properties": {"a": schema}}


@pytest.mark.parametrize("how", ["items", "allOf"])
async def test_what_nests_as_deep_as_grpc_carries_is_served_or_refused_with_the_reason(how: str) -> None:
    """What a call brings in comes back to readers within an event, a few levels deeper."""
    async with opened(FAST) as door, schema_doors(door.assembly.server.port, door.server.address) as doors:
        for name in ("grpc tools", "grpc format"):
            outcomes = {levels: await doors.send(name, nested(how, levels)) for levels in range(10, 34)}
            assert {levels: each for levels, each in outcomes.items() if not each.is_fair} == {}
            assert outcomes[33].code != ""
            assert name in UNSUPPORTED_BY_GRPC or outcomes[10].code == ""


async def test_a_reader_over_grpc_learns_that_a_schema_of_another_door_nests_too_deep() -> None:
    async with opened(FAST) as door:
        parameters = nested("items", 56)
        create = cm.SessionCreate(
            id=CommandId("1"), session=SessionId("s"), tools=(Tool(name="f", parameters=parameters),)
        )
        await door.assembly.gateway.execute(LOCAL_PRINCIPAL, create)
        for reading in (door.history("s"), door.stub.Get(pb.GetRequest(session="s"))):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await reading
            error = error_of(refused.value)
            assert error.code == "too_large" and "nests deeper than gRPC carries" in error.message


@pytest.mark.parametrize("where", ["tools", "format"])
async def test_a_turn_that_was_stored_with_such_a_schema_fails_and_its_session_goes_on(where: str) -> None:
    """As a server without bounds would have let it in: past the gateway."""
    async with opened(ScriptedEngine(FAST)) as door:
        assembly, session = door.assembly, SessionId("s")
        tools = (Tool(name="f", parameters=DOUBLED, strict=True),) if where == "tools" else ()
        text = TextOptions({"type": "json_schema", "schema": COUNTED}) if where == "format" else None
        for command in (
            cm.SessionCreate(id=CommandId("1"), session=session, tools=tools),
            cm.MessageCreate(id=CommandId("2"), session=session, content="x", text=text),
        ):
            await assembly.runtime.execute(request_of(LOCAL_PRINCIPAL, command))
        assert await ends(door, session, 1) == ["invalid_schema"]
        for later in (
            cm.SessionUpdate(id=CommandId("3"), session=session, tools=()),
            cm.MessageCreate(id=CommandId("4"), session=session, content="y"),
        ):
            await assembly.gateway.execute(LOCAL_PRINCIPAL, later)
        assert await ends(door, session, 2) == ["invalid_schema", ""]


async def ends(door: Door, session: SessionId, count: int) -> list[str]:
    """How the first `count` answers of a session ended: an error's code, or ""."""
    codes: list[str] = []
    async for reply in door.stub.History(pb.HistoryRequest(session=session, follow=True)):
        kind = reply.event.WhichOneof("event")
        if kind in ENDS:
            codes.append(reply.event.response_failed.response.error.code if kind == "response_failed" else "")
            if len(codes) == count:
                break
    return codes


async def test_a_server_that_was_killed_among_them_comes_back_and_serves() -> None:
    schemas = [(each.kind, each.schema) for each in hostile_schemas(3, COUNT)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        grpc_port = free.getsockname()[1]
    with ServerProcess("--engine", "sim", "--sim-tools", "--grpc-port", str(grpc_port)) as server:
        address = f"127.0.0.1:{grpc_port}"
        async with schema_doors(server.port, address) as doors:
            done = await send_all(doors, schemas, at_once=4)
            assert [each for each in done if not each[2].is_fair] == []
            under_way = [asyncio.create_task(doors.send(name, schemas[0][1])) for name in doors.names]
            await doors.send("chat tools", COUNTED)
            server.kill()
            await asyncio.gather(*under_way, return_exceptions=True)
        await asyncio.to_thread(server.start)
        async with schema_doors(server.port, address) as doors:
            good = await doors.send("chat tools", {"type": "object"})
        assert good.code == ""
