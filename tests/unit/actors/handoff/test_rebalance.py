"""When a replica has too much, how many sessions go, and which."""

from __future__ import annotations

from collections.abc import Mapping

from actors.handoff.rebalance import RebalanceLimits, Rebalancer
from sessions.model.types import ReplicaId
from sessions.ports import View
from tests.support.cluster.harness import Cluster, cluster
from tests.support.cluster.steps import all_met, other, planner_of
from tests.support.virtual_time import advance, virtual


class Bound:
    def __init__(self, bound: float) -> None:
        self.bound = bound

    def limits(self, view: View, *, model: str | None = None) -> Mapping[ReplicaId, float]:
        return {member.replica: self.bound for member in view.members}


def rebalancer(made: Cluster, name: str, *, load: float, bound: float = 0.5) -> Rebalancer:
    return Rebalancer(planner_of(made, name), Bound(bound), load=lambda: load, limits=RebalanceLimits(at_once=3))


@virtual
async def test_what_is_beyond_the_bound_goes_to_the_least_loaded_replica_a_few_at_a_time() -> None:
    async with cluster(replicas=2) as made:
        await all_met(made)
        target = other(made, "r1").name
        surplus, member = rebalancer(made, "r1", load=2.0).surplus()
        assert surplus == 3 and member is not None and member.replica == target
        assert rebalancer(made, "r1", load=0.6).surplus() == (0, None), "not nearly full"
        assert rebalancer(made, "r1", load=0.9, bound=1.0).surplus() == (0, None), "in its bound"


@virtual
async def test_idle_sessions_that_talked_lately_go_and_old_ones_stay() -> None:
    async with cluster(replicas=1) as made:
        keys = [await made.gateways["g1"].create(name) for name in ("one", "two")]
        overloaded = rebalancer(made, "r1", load=2.0)
        assert set(overloaded.candidates()) == set(keys)
        await advance(RebalanceLimits().recent_s + 1)
        await made.gateways["g1"].say(keys[1], tokens=3)
        await made.at_rest(keys[1])
        assert overloaded.candidates() == [keys[1]]
