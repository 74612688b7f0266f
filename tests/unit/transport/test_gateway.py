"""What a gateway decides itself: who may, how many commands at a time, and what is whose."""

from __future__ import annotations

import asyncio

import pytest

from sessions.model.commands import ActorCommand, Ok, SessionUpdate
from sessions.model.errors import Conflict, Forbidden, Limited, Overloaded, Unavailable
from sessions.model.types import LOCAL_PRINCIPAL, CommandId, Principal, ResponseId, SessionId
from tests.support.doors.transport import FakeSessions, gateway_over, memory_sessions
from transport.gateway import Gateway, GatewayLimits, GatewayServices

UPDATE = SessionUpdate(id=CommandId("c"), session=SessionId("s"), title="t")
READER = Principal(tenant=LOCAL_PRINCIPAL.tenant, key_id="k", scopes=("read",))


async def stuck(limits: GatewayLimits) -> tuple[Gateway, asyncio.Event]:
    """A gateway with one command under way until the event is set."""
    sessions, leave = await memory_sessions(), asyncio.Event()

    async def wait(_: Principal, command: ActorCommand) -> Ok:
        await leave.wait()
        return Ok(id=command.id)

    sessions.answer = wait
    gateway = gateway_over(sessions, limits=limits)
    gateway.tasks.start(run(gateway))
    await asyncio.sleep(0)
    return gateway, leave


async def run(gateway: Gateway) -> None:
    await gateway.execute(LOCAL_PRINCIPAL, UPDATE)


async def test_a_command_needs_its_scope_and_is_counted() -> None:
    gateway = gateway_over(await memory_sessions())
    assert (await gateway.execute(LOCAL_PRINCIPAL, UPDATE)).id == "c"
    with pytest.raises(Forbidden):
        await gateway.execute(READER, UPDATE)
    assert gateway.measures.commands.total == 2 and gateway.measures.refused.values == {("forbidden",): 1}


async def test_commands_under_way_are_limited_per_key_and_in_all() -> None:
    gateway, leave = await stuck(GatewayLimits(commands_per_principal_max=1))
    with pytest.raises(Limited):
        await gateway.execute(LOCAL_PRINCIPAL, UPDATE)
    leave.set()
    await gateway.tasks.settled()
    await gateway.execute(LOCAL_PRINCIPAL, UPDATE)
    full, leave = await stuck(GatewayLimits(commands_max=1))
    with pytest.raises(Overloaded):
        await full.execute(LOCAL_PRINCIPAL, UPDATE)
    leave.set()
    await full.tasks.settled()


async def test_a_cancel_that_comes_too_late_raises_nothing() -> None:
    sessions = FakeSessions((await memory_sessions()).journal)

    def late(_: Principal, command: ActorCommand) -> Ok:
        raise Conflict("response_in_progress", "It has ended.")

    sessions.answer = late
    await gateway_over(sessions).cancel(LOCAL_PRINCIPAL, SessionId("s"), [ResponseId("r")], id_prefix="http")
    assert [command.id for command in sessions.executed] == ["http_id0"]


async def test_erasures_are_swept_at_once_where_this_process_can() -> None:
    swept = []

    async def sweep() -> int:
        swept.append(1)
        raise Unavailable("journal_unavailable", "Away.")

    await gateway_over(await memory_sessions(), services=GatewayServices(erase=sweep)).sweep_erasures()
    await gateway_over(await memory_sessions()).sweep_erasures()
    assert swept == [1]
