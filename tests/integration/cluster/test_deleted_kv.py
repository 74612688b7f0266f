"""A session that moved leaves KV where it came from; when it is deleted, that goes too, told or not."""

from __future__ import annotations

from sessions.model import commands as cm
from sessions.model.journal_types import Due
from sessions.model.request import request_of
from sessions.model.types import INTEGER_MAX, NEVER, SessionKey, UnixMs
from tests.support.cluster.harness import ALICE, Cluster, advance, cluster, until
from tests.support.cluster.steps import member, other
from tests.support.virtual_time import virtual


def holders(made: Cluster, key: SessionKey) -> set[str]:
    return {name for name, node in made.replicas.items() if node.engine.place(key).tier != "none"}


async def moved(made: Cluster, session: str = "one") -> tuple[SessionKey, str, str]:
    """A session that two replicas hold KV of: where it was, and where it is."""
    key = await made.gateways["g1"].create(session)
    await made.gateways["g1"].say(key, tokens=20)
    await made.at_rest(key)
    source = made.replicas[made.owner(key)]
    target = other(made, source.name)
    await source.replica.handoff.hand_off(key, member(target))
    assert holders(made, key) == {source.name, target.name}
    return key, source.name, target.name


async def delete(made: Cluster, key: SessionKey) -> None:
    command = cm.SessionDelete(id=made.command_id(), session=key.session)
    await made.gateways["g1"].router.execute(request_of(ALICE, command))


@virtual
async def test_a_deleted_session_leaves_every_replica_at_once() -> None:
    async with cluster(replicas=3) as made:
        key, _, _ = await moved(made)
        stays, *_ = await moved(made, "two")
        await delete(made, key)
        await until(lambda: not holders(made, key), limit_s=0.5)
        assert len(holders(made, stays)) == 2


@virtual
async def test_a_replica_that_could_not_be_told_finds_out_by_itself() -> None:
    async with cluster(replicas=2) as made:
        key, source, target = await moved(made)
        stays, *_ = await moved(made, "two")
        for lane in (made.lane(source, target), made.lane(target, source)):
            lane.hold()
        await delete(made, key)
        await advance(1.0)
        assert holders(made, key) == {source}
        await until(lambda: not holders(made, key), limit_s=2 * made.replica_limits.sweeps.sweep_s)
        assert len(holders(made, stays)) == 2


@virtual
async def test_what_is_purged_without_having_been_deleted_goes_from_everywhere() -> None:
    async with cluster(replicas=2) as made:
        key, source, target = await moved(made)
        for lane in (made.lane(source, target), made.lane(target, source)):
            lane.hold()
        await made.replicas[target].replica.runtime.passivate(key)
        due = Due(deleted_before=NEVER, idle_before=UnixMs(INTEGER_MAX))
        assert await made.store.journal.purge([key], due, commands_before=NEVER, at=NEVER) == [key]
        await until(lambda: not holders(made, key), limit_s=2 * made.replica_limits.sweeps.sweep_s)
