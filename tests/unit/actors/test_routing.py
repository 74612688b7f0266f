"""Routes of sessions, and subscriptions that follow them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from actors.cluster.pool_states import PoolStates
from actors.cluster.versions import OURS
from actors.peer.links import LinkDown
from sessions.model.errors import NotFound
from sessions.model.generation import EngineInfo
from sessions.model.types import ActivationId, ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Member, Owner, Published, View
from tests.support.cluster.harness import ALICE, Cluster, advance, cluster, until
from tests.support.cluster.steps import all_met
from tests.support.virtual_time import outcome, virtual


def key(number: int) -> SessionKey:
    return SessionKey(ALICE.tenant, SessionId(f"s{number}"))


async def suspected(made: Cluster, name: str) -> None:
    """Makes a gateway suspect a replica, without anything happening to it."""
    router = made.gateways["g1"].router
    view = router.routes.view
    member = next(each for each in view.members if each.replica == name)
    made.network.unlisten(name)
    made.network.cut(name)
    await advance(0.01)
    assert isinstance(await outcome(router.links.get(member)), LinkDown)


@virtual
async def test_a_survivor_that_took_nothing_does_not_count() -> None:
    async with cluster(replicas=4) as made:
        where = made.gateways["g1"].router.routes
        one = await made.gateways["g1"].create("one")
        lost = where.remembered(one)
        assert lost is not None
        assert where.survivor(one, lost, None) is not None
        where.takeover_failed(one, Owner(lost.replica, lost.incarnation, ActivationId("another")))
        assert where.survivor(one, Owner(ReplicaId("r9"), "i", ActivationId("x")), None) is None
        where.takeover_failed(one, lost)
        assert where.survivor(one, Owner(ReplicaId("r9"), "i", ActivationId("x")), None) is not None


@virtual
async def test_nothing_is_taken_over_from_an_owner_that_left_in_order() -> None:
    """It would be the one takeover of that lease: an owner that dies soon after would wait for its end."""
    async with cluster(replicas=3) as made:
        gateway = made.gateways["g1"]
        one, routes = await gateway.create("one"), gateway.router.routes
        home = made.owner(one)
        assert routes.remembered(one) is not None
        await made.replicas[home].replica.runtime.passivate(one)
        await made.replicas[home].end()
        await suspected(made, home)
        route = await routes.route(one, new=False, model=None, absent=None)
        assert (route.owner, route.instead_of) == (None, None)
        await gateway.say(one, tokens=1)
        next_owner = routes.remembered(one)
        assert next_owner is not None and routes.survivor(one, next_owner, None) is not None


@virtual
async def test_an_owner_that_says_it_has_nothing_is_asked_to_take_it_when_the_directory_insists() -> None:
    """The entry of a session that left memory may linger: it must not be a dead end."""
    async with cluster(replicas=2) as made:
        gateway = made.gateways["g1"]
        one = await gateway.create("one")
        home = made.owner(one)
        owner = gateway.router.routes.remembered(one)
        assert owner is not None
        await made.replicas[home].replica.runtime.passivate(one)
        await advance(0.1)
        now = asyncio.get_running_loop().time()
        assert made.directory_store.claim(one, owner, instead_of=None, now=now).won  # as if the release had been lost
        began = asyncio.get_running_loop().time()
        await gateway.say(one, tokens=1)
        assert asyncio.get_running_loop().time() - began < 0.2
        assert made.owner(one) == home
        await made.at_rest(one)


@virtual
async def test_a_model_that_nobody_serves_is_refused_where_there_are_several() -> None:
    async with cluster(replicas=1) as made:
        where = made.gateways["g1"].router.routes
        route = await where.route(key(1), new=True, model="whatever", absent=None)
        assert route.member.replica == "r1", "one model: every name means it"
        options = type(made.engine_options)(model="another", model_aliases=("its-other-name",))
        made.engine_options = options
        await made.add_replica("r2")
        await advance(1.5)
        assert (await where.route(key(4), new=True, model="its-other-name", absent=None)).member.replica == "r2"
        assert (await where.route(key(2), new=True, model="another", absent=None)).member.replica == "r2"
        with pytest.raises(NotFound) as error:
            await where.route(key(3), new=True, model="whatever", absent=None)
        assert error.value.code == "model_not_found" and error.value.param == "model"


def test_another_name_of_a_model_that_is_away_is_still_its_name() -> None:
    engine = EngineInfo(
        model="big", build="", model_fingerprint="", context_window=1, slots=1, sampling=frozenset(), aliases=("large",)
    )
    member = Member(replica=ReplicaId("r"), incarnation="i", address="", model="big", fingerprint="", engine=engine)
    views = [View(1, (member,))]
    states = PoolStates(lambda: views[-1])
    assert states.model_of("large") == "big"
    views.append(View(2, ()))
    assert states.known() == {"big"}
    assert (states.model_of("large"), states.model_of("big"), states.model_of("other")) == ("big", "big", None)


@virtual
async def test_what_is_remembered_is_bounded() -> None:
    async with cluster(replicas=1) as made:
        where = made.gateways["g1"].router.routes
        where._owners_max = 10
        owner = Owner(ReplicaId("r1"), "i", ActivationId("x"))
        for number in range(30):
            where.remember(key(number), owner)
        assert where.remembered(key(19)) is None and where.remembered(key(20)) == owner


@virtual
async def test_a_new_session_is_placed_where_the_one_near_it_is_or_was_last() -> None:
    async with cluster(replicas=4) as made:
        where = made.gateways["g1"].router.routes
        one = await made.gateways["g1"].create("one")
        owner = where.remembered(one)
        assert owner is not None

        async def places(near: SessionKey | None) -> set[str]:
            routes = [
                await where.route(key(number), new=True, model=None, absent=None, near=near) for number in range(12)
            ]
            assert all(route.activate and route.owner is None for route in routes)
            return {route.member.replica for route in routes}

        assert len(await places(None)) > 1 and len(await places(key(99))) > 1, "a session that nobody knows is no hint"
        near = await where.route(key(1), new=True, model=None, absent=None, near=one)
        assert near.member.replica == owner.replica
        assert len(await places(one)) > 1, "and no more than the bound on a replica's load allows"


@virtual
async def test_a_gateway_has_a_replica_while_one_takes_sessions_and_answers() -> None:
    async with cluster(replicas=1) as made:
        router = made.gateways["g1"].router
        assert router.routes.has_replica and router.unready() is None
        await suspected(made, "r1")
        assert not router.routes.has_replica and router.unready() == "no replica is reachable"
    async with cluster(replicas=1) as made:
        router = made.gateways["g1"].router
        (member,) = router.routes.view.members
        router.routes.view = View(router.routes.view.version, (msgspec.structs.replace(member, draining=True),))
        assert not router.routes.has_replica
        router.routes.view = View(0, ())
        assert not router.routes.has_replica


KEY = SessionKey(TenantId("acme"), SessionId("one"))


def offsets(seen: list[Published]) -> list[int]:
    return [record.offset for published in seen for record in published.records]


async def silent(made: Cluster, gateway: str = "g1") -> bool:
    subscriptions = made.gateways[gateway].router.subscriptions
    await advance(0.1)
    return len(subscriptions) == 0 and subscriptions.attachments == 0


@virtual
async def test_watches_of_one_session_share_an_attachment_until_the_last_ends() -> None:
    async with cluster(replicas=1) as made:
        await made.gateways["g1"].create("one")
        router, first, second = made.gateways["g1"].router, list[Published](), list[Published]()
        unwatch = router.watch(KEY, first.append)
        unwatch_second = router.watch(KEY, second.append)
        await until(lambda: router.subscriptions.attachments == 1)
        assert len(router.subscriptions) == 1
        unwatch()
        await made.gateways["g1"].say(KEY, tokens=3)
        await made.at_rest(KEY)
        assert second and not offsets(first)
        unwatch_second()
        assert await silent(made)


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
