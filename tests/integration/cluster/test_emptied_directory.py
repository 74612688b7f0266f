"""An emptied directory fills again one replica at a time: who looks in between takes nothing from the living."""

from __future__ import annotations

import asyncio

import pytest

from actors.hosting.ownership import Moved
from sessions.model import commands as cm
from sessions.model.errors import Unavailable
from sessions.model.request import request_of
from sessions.model.types import SessionKey
from tests.support.cluster.harness import ALICE, Cluster, ReplicaNode, cluster, until
from tests.support.cluster.steps import migrations
from tests.support.virtual_time import advance, outcome, virtual


async def unread_answer(made: Cluster, *, tokens: int = 300) -> tuple[SessionKey, ReplicaNode, ReplicaNode]:
    """A session in mid-answer that nobody reads, its owner, and the other replica, which knows the owner."""
    gateway = made.gateways["g1"]
    key = await gateway.create("one")
    await gateway.say(key, tokens=tokens)
    await made.writes(key, 5)
    owner = made.replicas[made.owner(key)]
    (other,) = (node for node in made.replicas.values() if node is not owner)
    await until(lambda: len(other.replica.membership.view.members) == 2)
    return key, owner, other


async def emptied(made: Cluster, first: ReplicaNode) -> None:
    """The directory forgets everything; `first` alone has announced itself since."""
    made.directory_store.empty()
    first.replica.membership.change(weight=1.0)
    await until(lambda: [member.replica for member in first.replica.membership.view.members] == [first.name])


@virtual
async def test_who_sweeps_first_leaves_a_living_owner_its_answers() -> None:
    async with cluster(replicas=2) as made:
        key, owner, other = await unread_answer(made)
        await emptied(made, other)
        assert await other.replica.sweeps.recover() == 0
        assert made.owner(key) == owner.name
        await made.at_rest(key)
        assert migrations(made, key) == []


@virtual
async def test_who_is_sent_a_living_owners_session_says_where_it_is() -> None:
    async with cluster(replicas=2) as made:
        key, owner, other = await unread_answer(made)
        await emptied(made, other)
        runtime = other.replica.runtime
        command = cm.SessionUpdate(id=made.command_id(), session=key.session, title="mine")
        with pytest.raises(Moved) as moved:
            await runtime.execute(request_of(ALICE, command))
        assert moved.value.owner == owner.replica.runtime.ownership.owner(key)
        await made.gateways["g1"].router.execute(request_of(ALICE, command))
        assert made.owner(key) == owner.name


@virtual
async def test_an_idle_session_stays_too() -> None:
    async with cluster(replicas=2) as made:
        key, owner, other = await unread_answer(made, tokens=5)
        await made.at_rest(key)
        await emptied(made, other)
        command = cm.SessionUpdate(id=made.command_id(), session=key.session, title="mine")
        assert isinstance(await outcome(other.replica.runtime.execute(request_of(ALICE, command))), Moved)
        assert made.owner(key) == owner.name


@virtual
async def test_who_joins_as_soon_as_a_directory_is_back_leaves_a_living_owner_its_session() -> None:
    """All leases had ended while it was away: the first to start afterwards sees a view of itself alone."""
    async with cluster(replicas=2) as made:
        key, owner, other = await unread_answer(made, tokens=5)
        await made.at_rest(key)
        made.directory_away = True
        await other.kill()
        await advance(made.lease_ttl_s + 1.0)
        made.directory_away = False
        late = await made.add_replica("r3")
        assert [member.replica for member in late.replica.membership.view.members] == ["r3"]
        command = cm.SessionUpdate(id=made.command_id(), session=key.session, title="mine")
        assert isinstance(await outcome(late.replica.runtime.execute(request_of(ALICE, command))), Moved)
        assert made.owner(key) == owner.name


@virtual
async def test_a_dead_owner_is_replaced_without_waiting() -> None:
    async with cluster(replicas=2) as made:
        key, owner, other = await unread_answer(made)
        await owner.kill()
        await emptied(made, other)
        began = asyncio.get_running_loop().time()
        assert await other.replica.sweeps.recover() == 1
        assert asyncio.get_running_loop().time() - began < 0.2
        assert made.owner(key) == other.name


@virtual
async def test_an_owner_that_stands_still_is_replaced_within_a_second_of_the_sweep() -> None:
    async with cluster(replicas=2) as made:
        key, owner, other = await unread_answer(made)
        owner.stop()
        await emptied(made, other)
        began = asyncio.get_running_loop().time()
        assert await other.replica.sweeps.recover() == 1
        assert asyncio.get_running_loop().time() - began < 1.2
        owner.wake()
        await made.at_rest(key)
        assert migrations(made, key) == ["failover"]


@virtual
async def test_an_owner_that_does_not_reach_the_journal_after_its_lease_is_replaced() -> None:
    """It lives and is linked, but it can show nothing: that is as good as dead."""
    async with cluster(replicas=2) as made:
        key, owner, other = await unread_answer(made)
        ownership = owner.replica.runtime.ownership

        async def away(key: SessionKey, fence: int) -> bool:
            raise Unavailable("journal_unavailable", "away")

        ownership.invalidate()
        ownership.confirm = away  # type: ignore[method-assign]
        await emptied(made, other)
        assert await other.replica.sweeps.recover() == 1
        assert made.owner(key).split(",").count(other.name) == 1
