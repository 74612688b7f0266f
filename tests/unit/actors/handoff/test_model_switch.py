"""A switch is the hand-off between turns: what it leaves in the log, and that a failed one leaves the session here."""

from __future__ import annotations

import msgspec

from actors.cluster.placement import BoundedRendezvous
from actors.handoff.model_switch import ModelSwitching
from inference.simulated import SimulatedEngine
from sessions.actor.model_router import ModelSwitchPlan
from sessions.model import events as ev
from tests.support.cluster.harness import FAST, Cluster, cluster
from tests.support.cluster.steps import all_met, planner_of
from tests.support.virtual_time import virtual

LARGE = msgspec.structs.replace(FAST, model="large", weights=9)
PLAN = ModelSwitchPlan("large", ev.SessionRouting(alias="auto", target="large", why="hard"))


def switching(made: Cluster) -> ModelSwitching:
    return ModelSwitching(planner_of(made, "r1"), BoundedRendezvous())


@virtual
async def test_it_stays_where_nobody_serves_the_model_or_a_turn_is_open() -> None:
    async with cluster(replicas=1) as made:
        gateway = made.gateways["g1"]
        key = await gateway.create("one")
        assert await switching(made).switch(key, PLAN) is None
        await made.add_replica("l1", SimulatedEngine(LARGE))
        await all_met(made)
        await gateway.say(key, tokens=100)
        await made.writes(key, 5)
        assert await switching(made).switch(key, PLAN) is None, "an answer is being written"
        await made.at_rest(key)
        assert made.owner(key) == "r1"
        assert await switching(made).switch(key, PLAN) is not None


@virtual
async def test_the_replica_that_had_it_before_is_preferred() -> None:
    async with cluster(replicas=1) as made:
        keys = [await made.gateways["g1"].create(f"s{number}") for number in range(3)]
        homes = ("l1", "l2", "l3")
        for name in homes:
            await made.add_replica(name, SimulatedEngine(LARGE))
        await all_met(made)
        moves = switching(made)
        owners = [await moves.switch(key, PLAN._replace(home=home)) for key, home in zip(keys, homes, strict=True)]
        assert tuple(owner.replica for owner in owners if owner is not None) == homes
