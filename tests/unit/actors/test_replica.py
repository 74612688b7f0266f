"""A replica starts and stops in order, and is refused where it is unlike the others."""

from __future__ import annotations

import asyncio

from actors.cluster.versions import OURS
from tests.support.cluster.harness import cluster, until
from tests.support.cluster.steps import all_met, simulated
from tests.support.virtual_time import advance, virtual


@virtual
async def test_inside_its_context_it_is_a_member_with_its_address_engine_and_protocol() -> None:
    async with cluster(replicas=2) as made:
        await all_met(made)
        node = made.replicas["r1"]
        (announced,) = [each for each in made.gateways["g1"].router.routes.view.members if each.replica == "r1"]
        assert (announced.address, announced.protocol, announced.protocols) == ("r1", OURS[0], OURS)
        assert announced.engine == node.engine.info
        await node.end()
        await until(lambda: len(made.replicas["r2"].replica.membership.view.members) == 1)


@virtual
async def test_what_the_directory_lost_is_claimed_again_and_load_is_a_share_of_the_slots() -> None:
    async with cluster(replicas=1) as made:
        key = await made.gateways["g1"].create("one")
        made.directory_store.empty()
        await advance(3.0)
        assert made.directory_store.locate(key, now=asyncio.get_running_loop().time()) is not None
        replica = made.replicas["r1"].replica
        assert replica.load() == 0.0
        await made.gateways["g1"].say(key, tokens=200)
        await made.writes(key)
        assert replica.load() == 1 / simulated(made.replicas["r1"]).stats().slots
