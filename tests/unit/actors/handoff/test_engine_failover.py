"""While its engine is lost a replica takes nothing new and hands its open answers off."""

from __future__ import annotations

from sessions.model.errors import EngineLost
from tests.support.cluster.harness import cluster, until
from tests.support.cluster.steps import answering, other, simulated
from tests.support.virtual_time import advance, virtual

LOST = EngineLost("engine_lost", "The model's engine has died.")


@virtual
async def test_open_answers_leave_and_nothing_new_comes_until_the_engine_is_back() -> None:
    async with cluster(replicas=2) as made:
        key, _ = await answering(made, tokens=300)
        node = made.replicas[made.owner(key)]
        simulated(node).lose(LOST)
        await until(lambda: made.owner(key) == other(made, node.name).name, limit_s=10.0)
        announced = node.replica.membership.member
        assert announced is not None and announced.draining
        simulated(node).recover()
        await advance(1.0)
        announced = node.replica.membership.member
        assert announced is not None and not announced.draining


@virtual
async def test_an_answer_without_another_replica_waits_and_goes_on_here() -> None:
    async with cluster(replicas=1) as made:
        key, _ = await answering(made, tokens=100)
        node = made.replicas["r1"]
        simulated(node).lose(LOST)
        await advance(3.0)
        assert made.owner(key) == "r1" and made.store.head(key).open  # type: ignore[union-attr]
        simulated(node).recover()
        await made.at_rest(key)
        assert made.owner(key) == "r1"
