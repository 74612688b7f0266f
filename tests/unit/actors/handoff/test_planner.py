"""Where a session of a replica may go, and what becomes of a hand-off that is tried."""

from __future__ import annotations

from tests.support.cluster.harness import cluster, until
from tests.support.cluster.steps import all_met, member, other, planner_of
from tests.support.virtual_time import advance, virtual


@virtual
async def test_a_session_goes_to_another_replica_that_takes_sessions() -> None:
    async with cluster(replicas=2) as made:
        await all_met(made)
        key = await made.gateways["g1"].create("one")
        planner = planner_of(made, made.owner(key))
        target = other(made, made.owner(key))
        assert [each.replica for each in planner.other_members()] == [target.name]
        chosen = planner.choose_target(key)
        assert chosen is not None and chosen.replica == target.name and planner.can_take(chosen)
        assert await planner.try_hand_off(key, chosen) and made.owner(key) == target.name
        assert not await planner.try_hand_off(key, chosen), "it is not here any more"


@virtual
async def test_a_replica_that_drains_or_is_alone_has_no_target() -> None:
    async with cluster(replicas=2) as made:
        await all_met(made)
        key = await made.gateways["g1"].create("one")
        planner, target = planner_of(made, made.owner(key)), other(made, made.owner(key))
        target.replica.membership.change(draining=True)
        await until(lambda: any(each.draining for each in planner.view.members))
        assert planner.choose_target(key) is None and not planner.can_take(member(target))
        await target.end()
        await advance(8.0)
        assert planner.other_members() == [] and planner.choose_target(key) is None
