"""A replica starts and stops in order, and is refused where it is unlike the others."""

from __future__ import annotations

from actors.cluster.versions import OURS
from tests.support.cluster.harness import cluster, until
from tests.support.cluster.steps import all_met
from tests.support.virtual_time import virtual


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
