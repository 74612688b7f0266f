"""A session that is sealed for a hand-off, or leaves memory: nothing is written behind the end of its log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from inference.simulated import SimulatedOptions
from sessions.actor.actor import Actor
from sessions.model import events as ev
from sessions.model.types import ResponseId, UnixMs
from tests.support.cluster.replicas import KEY, Place, Reader, Replica
from tests.support.virtual_time import advance, settled, virtual


class Scene(NamedTuple):
    """A replica whose session has a question, and an answer that is being written."""

    place: Place
    replica: Replica
    reader: Reader
    actor: Actor
    response_id: ResponseId

    @property
    def num_appends(self) -> int:
        return self.replica.faults.calls.count("append")


@asynccontextmanager
async def answering() -> AsyncIterator[Scene]:
    async with Place(SimulatedOptions(answer_tokens_mean=60)) as place:
        replica = await place.replica()
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say("where is the river")
        actor = replica.runtime.actor(KEY)
        assert actor is not None and answer.response_id is not None
        await reader.delta(answer.response_id, 3)
        yield Scene(place, replica, reader, actor, answer.response_id)


@virtual
async def test_who_has_sealed_for_another_leaves_without_writing() -> None:
    """The target knows where the log ends: whatever makes the source leave, nothing comes behind that."""
    async with answering() as scene:
        await scene.reader.ended(scene.response_id)
        await scene.actor.seal()
        appends = scene.num_appends
        await scene.replica.runtime.passivate(KEY)
        assert scene.replica.runtime.actor(KEY) is None
        assert scene.num_appends == appends


@virtual
async def test_nothing_is_written_behind_a_seal_whoever_asks_for_it() -> None:
    """A reader's leaving, or a tool's deadline, waits until it is decided who owns the session."""
    async with answering() as scene:
        await scene.actor.seal()
        appends = scene.num_appends
        scene.actor.readers_left(cancel=True)
        await advance(1.0)
        assert scene.num_appends == appends
        scene.actor.unseal()
        ended = await scene.reader.ended(scene.response_id)
        assert isinstance(ended, ev.ResponseIncomplete), "the cancellation waited"


@virtual
async def test_nothing_is_written_beside_the_snapshot_of_a_session_that_leaves() -> None:
    async with answering() as scene:
        await scene.reader.delta(scene.response_id, 12)
        scene.replica.faults.slow("append", 0.5)
        leaving = asyncio.create_task(scene.replica.runtime.passivate(KEY))
        await settled()
        await settled()
        appends = scene.num_appends
        scene.actor.readers_left(cancel=True)
        again = asyncio.create_task(scene.actor.passivate())
        await settled()
        assert not again.done() and scene.replica.runtime.actor(KEY) is scene.actor, "both wait for the same end"
        await asyncio.gather(leaving, again)
        assert scene.num_appends == appends and scene.place.head().open
        loaded = scene.place.store.load(KEY, UnixMs(0))
        assert loaded is not None and loaded.snapshot is not None
