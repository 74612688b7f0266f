"""A command is sent until it is answered, wherever its session is, or its sender gets a retryable error."""

from __future__ import annotations

from tests.support.cluster.harness import advance, cluster
from tests.support.cluster.steps import member
from tests.support.virtual_time import virtual


@virtual
async def test_replicas_are_linked_before_anybody_needs_them() -> None:
    async with cluster(replicas=2) as made:
        links = made.gateways["g1"].router.links
        await advance(0.1)
        assert all(links.member(member(node)) is not None for node in made.replicas.values())
        late = await made.add_replica("r3")
        await advance(made.router_limits.view_s + 0.1)
        assert links.member(member(late)) is not None
