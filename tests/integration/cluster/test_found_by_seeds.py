"""What the simulator found, told again in few words (`tests/simulation/test_seeds.py` has the seeds)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.handoff.source import HandoffAbandoned
from sessions.model import commands as cm
from sessions.model.errors import Conflict
from sessions.model.request import request_of
from sessions.model.types import SessionKey
from tests.support.cluster.harness import ALICE, Cluster, advance, cluster
from tests.support.cluster.steps import migrations
from tests.support.virtual_time import virtual


def holder_and_other(made: Cluster, key: SessionKey) -> tuple[str, str]:
    owner = made.owner(key)
    return owner, next(name for name in made.replicas if name != owner)


@virtual
async def test_a_session_that_left_by_itself_is_not_expected_any_more() -> None:
    async with cluster(replicas=2) as made:
        key = await made.gateways["g1"].create("one")
        owner, other = holder_and_other(made, key)
        source, target = made.replicas[owner].replica, made.replicas[other].replica

        async def leaves(*_: object) -> None:
            await source.runtime.passivate(key)

        source.handoff._bring_up = leaves  # type: ignore[method-assign,assignment]
        member = target.membership.member
        assert member is not None
        with pytest.raises(HandoffAbandoned):
            await source.handoff.hand_off(key, member)
        await advance(0.1)
        assert not target.handoff_target.arriving


@virtual
async def test_a_reader_that_was_not_told_of_a_short_life_finds_it_in_the_journal() -> None:
    """The session woke, spoke and was parked again between two looks, and the news of it were lost."""
    async with cluster(replicas=2, gateways=2) as made:
        near, far = made.gateways["g1"], made.gateways["g2"]
        key = await near.create("one")
        await made.replicas[made.owner(key)].replica.runtime.passivate(key)
        reader = far.read(key)
        await advance(0.1)
        made.directory_store.activated = lambda *_, **__: None  # type: ignore[method-assign]
        await near.say(key, tokens=2)
        top = await made.at_rest(key)
        await made.replicas[made.owner(key)].replica.runtime.passivate(key)
        assert reader.top < top
        await reader.reaches(top, limit_s=6 * made.lease_ttl_s)


@virtual
async def test_an_entry_that_could_not_be_given_back_does_not_lead_readers_astray() -> None:
    """A hand-off while the directory is away: the target takes it by the journal, the source's entry stays behind."""
    async with cluster(replicas=2, gateways=2) as made:
        near, far = made.gateways["g1"], made.gateways["g2"]
        key = await near.create("one")
        owner, other = holder_and_other(made, key)
        member = made.replicas[other].replica.membership.member
        assert member is not None
        made.directory_away = True
        await made.replicas[owner].replica.handoff.hand_off(key, member)
        await advance(0.1)
        made.directory_away = False
        reader = far.read(key)
        await advance(2 * made.replica_limits.sweeps.sweep_s)
        await near.say(key, tokens=40)
        await made.writes(key, 5)
        await reader.reaches(made.top(key), limit_s=1.0)
        assert made.owner(key) == other


@virtual
async def test_a_gateway_that_leaves_while_it_reads_the_view_leaves_no_task_behind() -> None:
    async with cluster(replicas=1, gateways=1) as made:
        whereabouts = made.gateways["g1"].router.routes
        reading = asyncio.ensure_future(whereabouts.refresh())
        await asyncio.sleep(0)
        task = whereabouts._refreshing
    await asyncio.wait((reading,))
    assert task is not None and task.cancelled()


@virtual
async def test_copies_of_a_command_get_one_answer_also_while_a_refusal_waits_for_the_journal() -> None:
    """The first was refused because an answer was open; the second came when it no longer was."""
    async with cluster(replicas=1) as made:
        key = await made.gateways["g1"].create("one")
        await made.gateways["g1"].say(key, tokens=20)
        await made.writes(key)
        runtime = made.replicas["r1"].replica.runtime
        confirm, journal_answers = runtime.ownership.confirm, asyncio.Event()

        async def late(*of: Any) -> bool:
            await journal_answers.wait()
            return await confirm(*of)

        runtime.ownership.confirm = late  # type: ignore[assignment, method-assign]
        command = cm.MessageCreate(id=made.command_id(), session=key.session, content="And then?")

        async def said() -> str:
            try:
                await runtime.execute(request_of(ALICE, command))
            except Conflict as refused:
                return refused.code
            return "ok"

        first = asyncio.create_task(said())
        top = await made.at_rest(key)
        second = asyncio.create_task(said())
        await advance(0.1)
        journal_answers.set()
        assert [await first, await second] == ["response_in_progress"] * 2
        assert made.top(key) == top
        assert await said() == "ok", "sent again after the refusal it is another attempt"


@virtual
async def test_an_owner_that_was_replaced_unheard_is_told_by_its_successor() -> None:
    """A cut-off owner was replaced while the directory was away. It lives, at rest, and the directory names it: readers
    who attach to it would wait for ever."""
    async with cluster(replicas=2, gateways=2) as made:
        near, far = made.gateways["g1"], made.gateways["g2"]
        key = await near.create("one")
        owner, other = holder_and_other(made, key)
        lost = made.replicas[owner].replica.runtime.ownership.owner(key)
        assert lost is not None
        reader = far.read(key)
        await advance(0.1)
        made.directory_away = True
        say = cm.MessageCreate(id=made.command_id(), session=key.session, content="Hello?", max_output_tokens=3)
        await made.replicas[other].replica.runtime.execute(request_of(ALICE, say), instead_of=lost)
        made.directory_away = False
        top = await made.at_rest(key)
        await reader.reaches(top, limit_s=6 * made.replica_limits.sweeps.sweep_s)
        await advance(2 * made.replica_limits.sweeps.sweep_s)
        assert made.replicas[owner].replica.runtime.actor(key) is None and made.owner(key) == other


@virtual
async def test_a_drain_waits_for_a_session_that_is_being_taken_in() -> None:
    """A hand-off had sealed the session for a replica that was drained before it had read the head: the process would
    have ended in the middle."""
    async with cluster(replicas=2) as made:
        key = await made.gateways["g1"].create("one")
        owner, other = holder_and_other(made, key)
        source, target = made.replicas[owner].replica, made.replicas[other].replica
        member, journal, journal_answers = target.membership.member, target.runtime._journal, asyncio.Event()
        assert member is not None
        read = journal.head

        async def late(of: SessionKey) -> Any:
            await journal_answers.wait()
            return await read(of)

        journal.head = late  # type: ignore[method-assign, assignment]
        moving = asyncio.create_task(source.handoff.hand_off(key, member))
        await advance(0.1)
        draining = asyncio.create_task(target.drain())
        await advance(0.5)
        assert not draining.done()
        journal_answers.set()
        await moving
        await draining
        assert made.owner(key) != other


@virtual
async def test_a_session_that_is_being_parked_is_not_sealed_for_another() -> None:
    """A drain brought its KV up when it was idle for long enough to leave: both ended it, and the snapshot that it
    leaves with was written behind the end of the log that the target had been told."""
    async with cluster(replicas=2) as made:
        gateway = made.gateways["g1"]
        key = await gateway.create("one")
        await gateway.say(key, tokens=5)
        await made.at_rest(key)
        owner, other = holder_and_other(made, key)
        source, target = made.replicas[owner].replica, made.replicas[other].replica
        member, journal = target.membership.member, source.runtime._journal
        journal_is_asked, journal_answers = asyncio.Event(), asyncio.Event()
        assert member is not None
        append, appended = journal.append, list[int]()

        async def late(of: Any) -> None:
            journal_is_asked.set()
            await journal_answers.wait()
            await append(of)
            appended.append(of.fence)

        async def leaves(*_: object) -> None:
            journal.append = late  # type: ignore[method-assign, assignment]
            made.background(source.runtime.passivate(key))
            await journal_is_asked.wait()

        source.handoff._bring_up = leaves  # type: ignore[method-assign,assignment]
        with pytest.raises(HandoffAbandoned):
            await source.handoff.hand_off(key, member)
        journal_answers.set()
        await advance(0.1)
        assert appended == [1] and source.runtime.actor(key) is None and target.runtime.actor(key) is None


@virtual
async def test_a_restarted_replica_that_the_view_has_yet_to_name_keeps_its_session() -> None:
    """The directory went away just after it had come back under its name. A session was handed to it, and its source
    ended: a gateway took the process that it remembered, which had ended, for the owner that the journal named."""
    async with cluster(replicas=3) as made:
        gateway = made.gateways["g1"]
        key = await gateway.create("one")
        await gateway.say(key, tokens=400)
        await made.writes(key)
        reader = gateway.read(key)
        owner, other = holder_and_other(made, key)
        await made.replicas[other].kill()
        made.directory_away = True
        await advance(0.5)
        made.directory_away = False
        restarted = await made.add_replica(other)
        made.directory_away = True
        member, source = restarted.replica.membership.member, made.replicas[owner]
        assert member is not None
        await source.replica.handoff.hand_off(key, member)
        await source.kill()
        await advance(3.0)
        assert made.owner(key) == other
        made.directory_away = False
        await reader.reaches(await made.at_rest(key))
        assert migrations(made, key) == ["handoff"]
