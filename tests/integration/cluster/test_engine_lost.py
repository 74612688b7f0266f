"""Engines that die while their replica lives: answers go on at another replica, or here when the engine is back."""

from __future__ import annotations

from sessions.model import commands as cm
from sessions.model.errors import EngineLost
from sessions.model.events import ResponseFailed
from sessions.model.request import request_of
from tests.support.cluster.harness import ALICE, Cluster, ReplicaNode, advance, cluster, until
from tests.support.cluster.steps import answering, migrations, now, simulated, text_of
from tests.support.stores.tables import page_of
from tests.support.virtual_time import virtual

DIED = EngineLost("engine_lost", "The model's engine has died.")


async def announced(made: Cluster, node: ReplicaNode, *, away: bool) -> None:
    """Returns when the view says that nothing new is to go to a replica, or that it may."""

    def so() -> bool:
        view = made.gateways["g1"].router.routes.view
        return next(member.draining for member in view.members if member.replica == node.name) is away

    await until(so)


@virtual
async def test_the_answer_goes_on_at_another_replica_within_a_second() -> None:
    texts = []
    for dies in (False, True):
        async with cluster(replicas=2, gateways=2) as made:
            key, reader = await answering(made, "g2")
            source = made.replicas[made.owner(key)]
            if dies:
                died_at = now()
                simulated(source).lose(DIED)
                await reader.reaches(made.top(key) + 5)
                assert now() - died_at < 1.0
                assert made.owner(key) != source.name
                await announced(made, source, away=True)
                simulated(source).recover()
                await announced(made, source, away=False)
            await reader.reaches(await made.at_rest(key))
            texts.append(text_of(made, key))
            assert migrations(made, key) == (["restart", "handoff"] if dies else [])
    assert texts[0] == texts[1]


@virtual
async def test_without_another_replica_it_waits_for_the_engine() -> None:
    texts = []
    for dies in (False, True):
        async with cluster(replicas=1) as made:
            key, reader = await answering(made)
            if dies:
                engine = simulated(made.replicas["r1"])
                engine.lose(DIED)
                await advance(20.0)
                assert reader.top == made.top(key) and migrations(made, key) == ["restart"]
                engine.recover()
            await reader.reaches(await made.at_rest(key))
            texts.append(text_of(made, key))
    assert texts[0] == texts[1]


@virtual
async def test_a_turn_that_waits_for_its_slot_is_not_lost_with_the_engine() -> None:
    async with cluster(replicas=1) as made:
        engine = simulated(made.replicas["r1"])
        engine.lose(DIED)
        key = await made.gateways["g1"].create("one")
        await made.gateways["g1"].say(key, tokens=5)
        await advance(5.0)
        engine.recover()
        await made.at_rest(key)
        assert migrations(made, key) == [] and text_of(made, key)


@virtual
async def test_a_session_that_keeps_killing_its_engine_is_given_up() -> None:
    async with cluster(replicas=1) as made:
        key = await made.gateways["g1"].create("one")
        engine = simulated(made.replicas["r1"])
        await made.gateways["g1"].say(key, "word " * 1000, tokens=5)
        for _ in range(3):
            await until(lambda: engine.stats().running == 1)
            engine.lose(DIED)
            engine.recover()
        await made.at_rest(key)
        page = page_of(made.store, key)
        assert page is not None
        failed = page.records[-1].event
        assert isinstance(failed, ResponseFailed) and failed.response.error is not None
        assert failed.response.error["code"] == "quarantined"
        assert migrations(made, key) == ["restart", "restart"]
        await made.gateways["g1"].say(key, "And now?", tokens=5)
        await made.at_rest(key)
        assert text_of(made, key), "the session itself goes on"


@virtual
async def test_a_death_counts_once_however_many_answers_of_a_session_it_ends() -> None:
    async with cluster(replicas=1) as made:
        gateway = made.gateways["g1"]
        key = await gateway.create("one")
        for number in range(4):
            await gateway.router.execute(
                request_of(
                    ALICE,
                    cm.MessageCreate(
                        id=made.command_id(),
                        session=key.session,
                        content=f"Story {number}.",
                        parent_id=None,
                        max_output_tokens=20,
                    ),
                )
            )
        engine = simulated(made.replicas["r1"])
        await until(lambda: engine.stats().running == 4)
        engine.lose(DIED)
        engine.recover()
        await made.at_rest(key)
        assert migrations(made, key) == ["restart"]
        page = page_of(made.store, key)
        assert page is not None
        assert not [record for record in page.records if isinstance(record.event, ResponseFailed)]
