"""What is over is freed at once, by its last reference."""

from __future__ import annotations

import pytest

from sessions.actor.actor import Actor
from sessions.actor.mailbox import ActorStopped, Envelope
from sessions.machine.machine import Machine
from sessions.model import commands as cm
from sessions.model.errors import Conflict, Gone, NotFound, SessileError
from sessions.model.request import request_of
from sessions.model.types import LOCAL_PRINCIPAL, CommandId, SessionId
from tests.support.cluster.replicas import KEY, SESSION, Place
from tests.support.garbage import no_cycles
from tests.support.virtual_time import virtual

pytestmark = pytest.mark.slow


@virtual
async def test_refused_commands_and_sessions_that_left_memory_are_free_at_once() -> None:
    again = cm.SessionCreate(id=CommandId("again"), session=SESSION)
    unknown = cm.MessageCreate(id=CommandId("m"), session=SessionId("nobody's"), content="Hello?")
    delete = cm.SessionDelete(id=CommandId("d"), session=SESSION)
    async with Place() as place:
        replica = await place.replica()
        await replica.create()
        with no_cycles(Actor, ActorStopped, Envelope, Machine, SessileError):
            for command, error in ((again, Conflict), (unknown, NotFound)):
                try:
                    await replica.runtime.execute(request_of(LOCAL_PRINCIPAL, command))
                except error:
                    continue
                pytest.fail(f"{command} was not refused")
            await replica.runtime.passivate(KEY)
            await replica.runtime.execute(request_of(LOCAL_PRINCIPAL, delete))
            await replica.runtime.passivate(KEY)
            try:
                await replica.say("Hello?")
            except Gone:
                await replica.runtime.passivate(KEY)
