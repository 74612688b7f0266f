"""One actor on a memory journal: durable before answered, sealed, fenced, idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from inference.simulated import SimulatedEngine, SimulatedOptions
from sessions.actor.actor import Actor, Phase
from sessions.actor.actor_context import ActorContext, ActorLimits
from sessions.actor.mailbox import ActorStopped
from sessions.machine.machine import Machine
from sessions.machine.state import empty
from sessions.metrics import Metrics
from sessions.model import commands as cm
from sessions.model.errors import Conflict, Overloaded
from sessions.model.request import request_of
from sessions.model.types import LOCAL_PRINCIPAL, CommandId, Epoch, SessionKey, UnixMs
from sessions.ports import Journal, Published
from sessions.schemas import InlineSchemaChecker
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.machine.machine_fixture import KEY, SESSION
from tests.support.stores.journals import MemoryBed
from tests.support.virtual_time import settled, virtual

NOW = UnixMs(1_000_000)


class Stage:
    """An actor of a new session with everything that it works with."""

    def __init__(self, journal: Journal, actor: Actor, published: list[Published], ended: list[Actor]) -> None:
        self.journal, self.actor, self.published, self.ended = journal, actor, published, ended
        self._numbers = 0

    async def do(self, command: cm.ActorCommand) -> cm.Ok:
        return await self.actor.execute(request_of(LOCAL_PRINCIPAL, command))

    def name(self) -> CommandId:
        self._numbers += 1
        return CommandId(f"c{self._numbers}")

    async def create(self) -> cm.Ok:
        return await self.do(cm.SessionCreate(id=self.name(), session=SESSION))

    def message(self, **more: Any) -> cm.MessageCreate:
        return cm.MessageCreate(id=self.name(), session=SESSION, content="hello", **more)

    async def granted_elsewhere(self) -> None:
        await self.journal.grant(KEY, expected_fence=self.actor.fence, owner="other", new_epoch=Epoch("e2"), now_ms=NOW)


@asynccontextmanager
async def stage(**limits: Any) -> AsyncIterator[Stage]:
    journal, engine = (await MemoryBed().open()).journal, SimulatedEngine(SimulatedOptions(answer_tokens_mean=20))
    await engine.start()
    head = await journal.grant(KEY, expected_fence=None, owner="r", new_epoch=Epoch("e"), now_ms=NOW)
    published: list[Published] = []
    ended: list[Actor] = []

    async def erase(key: SessionKey) -> None: ...

    async with asyncio.TaskGroup() as tasks:
        context = ActorContext(
            journal=journal,
            engine=engine,
            schemas=InlineSchemaChecker(),
            filters=KeywordFilterSet(),
            replica="r",
            now_ms=lambda: NOW,
            spawn=tasks.create_task,
            publish=published.append,
            erase=erase,
            limits=ActorLimits(**limits),
            metrics=Metrics(),
        )
        machine = Machine(empty(KEY, user=None), default_model="sim", fingerprint=engine.tokenizer.fingerprint)
        made = Stage(journal, Actor(machine, head, context, on_end=ended.append, snapshot_at=0), published, ended)
        yield made
        await made.actor.passivate()
    await engine.close()


@virtual
async def test_an_answer_is_durable_and_shown_when_it_comes() -> None:
    async with stage() as made:
        ok = await made.create()
        head = await made.journal.head(KEY)
        assert head is not None and head.top == ok.offset == made.actor.top == 1
        assert [record.offset for each in made.published for record in each.records] == [1]
        with pytest.raises(Conflict):
            await made.create()


@virtual
async def test_a_response_is_written_to_its_end_and_then_the_actor_is_idle() -> None:
    async with stage() as made:
        await made.create()
        answer = await made.do(made.message())
        assert made.actor.busy and made.actor.open == (answer.response_id,)
        await made.actor.written()
        assert not made.actor.busy and made.actor.open == ()
        records = [record for each in made.published for record in each.records]
        assert [record.offset for record in records] == list(range(1, made.actor.top + 1))


@virtual
async def test_a_sealed_actor_takes_nothing_until_it_is_unsealed() -> None:
    async with stage() as made:
        await made.create()
        await made.do(made.message())
        await made.actor.seal()
        assert made.actor.phase is Phase.SEALED and made.actor.open, "the response stays open in the log"
        with pytest.raises(ActorStopped):
            await made.do(made.message())
        deciding = asyncio.ensure_future(made.actor.settled())
        made.actor.unseal()
        await deciding
        await made.actor.written()
        assert made.actor.open == (), "it was written further"


@virtual
async def test_a_full_mailbox_refuses() -> None:
    async with stage(mailbox_commands=1) as made:
        await made.create()
        waiting = [asyncio.ensure_future(made.do(made.message(respond=False))) for _ in range(3)]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert sum(isinstance(each, cm.Ok) for each in results) == 1
        assert sum(isinstance(each, Overloaded) and each.code == "mailbox_full" for each in results) == 2


@virtual
async def test_a_refused_append_fences_the_actor_and_shows_nothing() -> None:
    async with stage() as made:
        await made.create()
        await made.granted_elsewhere()
        with pytest.raises(ActorStopped):
            await made.do(made.message())
        await settled()
        assert made.actor.phase is Phase.FENCED and made.ended == [made.actor]
        assert len(made.published) == 1


@virtual
async def test_deletion_ends_the_actor() -> None:
    async with stage() as made:
        await made.create()
        await made.do(cm.SessionDelete(id=made.name(), session=SESSION))
        assert made.actor.phase is Phase.GONE and made.ended == [made.actor]
