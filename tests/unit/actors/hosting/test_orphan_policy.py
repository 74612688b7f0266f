"""Answers that nobody reads any more and that are to pause: they give room to others, and go on for who comes back."""

from __future__ import annotations

from typing import Any

from actors.hosting.runtime import RuntimeLimits
from inference.simulated import SimulatedOptions
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.types import ResponseId, SessionId
from tests.support.cluster.replicas import KEY, Place, Replica, text_of
from tests.support.cluster.sweeps import sweeps_of
from tests.support.virtual_time import advance, outcome, settled, until, virtual

ENDLESS = SimulatedOptions(answer_tokens_mean=0)
OTHER = SessionId("s2")


def limits(**more: Any) -> RuntimeLimits:
    return RuntimeLimits(orphan_policy="pause", orphan_after_s=1.0, **more)


async def abandoned(replica: Replica) -> ResponseId:
    """A long answer whose reader has left, and which has been paused for that."""
    unwatch = replica.runtime.watch(KEY, lambda published: None)
    await replica.create()
    answer = await replica.say(max_output_tokens=400)
    await advance(1.0)
    unwatch()
    await advance(1.1)
    assert replica.engine.stats().running == 0 and replica.place.head().open
    assert answer.response_id is not None
    return answer.response_id


async def create_other(replica: Replica) -> object:
    return await outcome(replica.do(cm.SessionCreate(id=replica.place.name(), session=OTHER)))


async def undisturbed() -> str:
    async with Place(ENDLESS) as place:
        replica = await place.replica()
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say(max_output_tokens=400)
        await reader.ended(answer.response_id)
        return reader.text(answer.response_id)


@virtual
async def test_a_paused_answer_gives_its_room_to_others_and_goes_on_when_it_is_read_again() -> None:
    async with Place(ENDLESS) as place:
        replica = await place.replica(limits=limits(actors_max=1))
        response_id = await abandoned(replica)
        assert isinstance(await create_other(replica), cm.Ok)
        assert not replica.runtime.present(KEY) and place.head().open
        written, fence = place.head().top, place.head().fence
        sweeps = sweeps_of(replica)
        for _ in range(3):
            assert await sweeps.recover() == 0, "nobody reads it"
        assert (place.head().top, place.head().fence) == (written, fence)
        reader = place.read(replica)
        await reader.ended(response_id)
        (ended,) = place.terminals(response_id)
        assert isinstance(ended, ev.ResponseIncomplete) and ended.response.incomplete_details == {
            "reason": "max_output_tokens"
        }
        assert text_of(place.records(), response_id) == await undisturbed()


@virtual
async def test_a_paused_answer_leaves_memory_like_an_idle_session_and_another_replica_may_finish_it() -> None:
    async with Place(ENDLESS) as place:
        replica = await place.replica("r1", limits=limits(idle_s=10.0))
        response_id = await abandoned(replica)
        sweeps = sweeps_of(replica)
        assert await sweeps.passivate_idle() == 0, "not before its time"
        await advance(10.0)
        assert await sweeps.passivate_idle() == 1
        await settled()
        assert await sweeps.recover() == 0 and not replica.runtime.actors
        other = await place.replica("r2")
        assert await sweeps_of(other).recover() == 1
        await until(lambda: bool(place.terminals(response_id)), step_s=0.1)
        other.crash()


@virtual
async def test_what_another_has_had_since_is_recovered_like_anything_else() -> None:
    """It is left alone only as it was put away: who went on with it and died has left an orphan."""
    async with Place(ENDLESS) as place:
        replica = await place.replica("r1", limits=limits(actors_max=1))
        response_id = await abandoned(replica)
        await create_other(replica)
        other = await place.replica("r2")
        assert await sweeps_of(other).recover() == 1
        reader = place.read(other)
        await reader.delta(response_id, 2)
        other.crash()
        await advance(7.0)
        assert await sweeps_of(replica).recover() == 1
        await until(lambda: bool(place.terminals(response_id)), step_s=0.1)


async def attended(replica: Replica, **request: Any) -> ResponseId:
    """A long answer as `/v1/chat/completions` begins it, for a client that waits."""
    turn = cm.TurnCreate(
        id=replica.place.name(),
        session=SessionId(KEY.session),
        create=cm.SessionSettings(),
        items=(cm.NewMessage(content="hello"),),
        request={"store": False, **request},
        max_output_tokens=4000,
    )
    answer = await replica.do(turn)
    assert answer.response_id is not None
    return answer.response_id


@virtual
async def test_what_a_client_waits_for_ends_when_its_gateway_has_died() -> None:
    for request, ends in (({"attended": True}, True), ({}, False)):
        async with Place(ENDLESS) as place:
            replica = await place.replica()
            unwatch = replica.runtime.watch(KEY, lambda published: None)
            response_id = await attended(replica, **request)
            await advance(1.0)
            unwatch()  # as the link of a gateway that was killed does
            await advance(11.0)
            assert [end.response.incomplete_details for end in place.terminals(response_id)] == [
                {"reason": "orphaned"}
            ] * ends
            await replica.delete()


@virtual
async def test_a_server_that_was_killed_finishes_it_for_nobody() -> None:
    """Both died: the gateway that would have cancelled it, and the replica that wrote it."""
    for reads in (False, True):
        async with Place(ENDLESS) as place:
            replica = await place.replica("r1")
            replica.runtime.watch(KEY, lambda published: None)
            response_id = await attended(replica, attended=True)
            await advance(1.0)
            replica.crash()
            await advance(7.0)
            other = await place.replica("r2")
            assert await sweeps_of(other).recover() == 1
            if reads:  # its gateway lives, and goes on reading here
                place.read(other)
            await advance(20.0)
            assert bool(place.terminals(response_id)) is not reads
            await other.delete()
