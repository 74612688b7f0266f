"""What a gateway decides itself: who may, how many commands at a time, and what is whose."""

from __future__ import annotations

import asyncio
from base64 import b64encode

import pytest
from msgspec.structs import replace

from sessions.model.commands import ActorCommand, MessageCreate, Ok, SessionUpdate
from sessions.model.errors import BadInput, Conflict, Forbidden, Limited, Overloaded, Unavailable
from sessions.model.types import LOCAL_PRINCIPAL, CommandId, InputImage, Principal, ResponseId, SessionId
from tests.support.doors.transport import FakeSessions, gateway_over, memory_sessions
from tests.support.images.inline import InlineImages
from tests.support.images.made import a_pattern, encoded
from transport.gateway import Gateway, GatewayLimits, GatewayServices
from transport.model_catalog import ModelCard, PoolFacts

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


async def test_an_image_for_an_alias_or_of_a_repeat_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = InlineImages()
    models = (
        ModelCard(id="blind"),
        ModelCard(id="any", pool=PoolFacts(replicas=1, models=("blind", "seeing"))),
        ModelCard(id="seeing", images=True),
    )
    sessions = await memory_sessions()
    gateway = gateway_over(sessions, services=GatewayServices(models=lambda: models, images=decoder))
    url = "data:image/png;base64," + b64encode(encoded(a_pattern())).decode()
    command = MessageCreate(id=CommandId("m"), session=SessionId("s"), content=(InputImage(image_url=url),))
    for number, name in enumerate(("any", "seeing", "unheard of"), start=1):
        await gateway.execute(LOCAL_PRINCIPAL, replace(command, model=name))
        assert decoder.read == number
    with pytest.raises(BadInput):
        await gateway.execute(LOCAL_PRINCIPAL, replace(command, model="blind"))
    assert decoder.read == 3
    monkeypatch.setattr(gateway, "applied", applied)
    await gateway.execute(LOCAL_PRINCIPAL, replace(command, model="blind"))
    assert decoder.read == 4


async def applied(*_: object) -> bool:
    return True
