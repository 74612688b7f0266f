"""A command is sent until it is answered, wherever its session is, or its sender gets a retryable error."""

from __future__ import annotations

import asyncio

import pytest

from sessions.model import commands as cm
from sessions.model.errors import NotFound, Unavailable
from sessions.model.request import Request, request_of
from sessions.model.types import ActivationId, CommandId, ReplicaId, SessionId
from sessions.ports import Owner
from tests.support.cluster.harness import ALICE, advance, cluster
from tests.support.cluster.steps import all_met, member, other
from tests.support.virtual_time import virtual


def delete(session: str) -> Request:
    return request_of(ALICE, cm.SessionDelete(id=CommandId("d"), session=SessionId(session)))


@virtual
async def test_a_command_follows_its_session_to_the_owner_that_is_named() -> None:
    async with cluster(replicas=2) as made:
        await all_met(made)
        gateway = made.gateways["g1"]
        key = await gateway.create("one")
        source = made.replicas[made.owner(key)]
        await source.replica.handoff.hand_off(key, member(other(made, source.name)))
        gateway.router.routes.remember(key, Owner(source.name, "wrong", ActivationId("a")))
        assert (await gateway.say(key, tokens=3)).response_id is not None
        owner = gateway.router.routes.remembered(key)
        assert owner is not None and owner.replica == made.owner(key) != source.name


@virtual
async def test_without_a_replica_it_is_tried_for_as_long_as_patience_lasts() -> None:
    async with cluster(replicas=0) as made:
        router, loop = made.gateways["g1"].router, asyncio.get_running_loop()
        begun_at = loop.time()
        with pytest.raises(Unavailable) as error:
            await router.execute(request_of(ALICE, cm.SessionCreate(id=CommandId("c"))))
        assert error.value.code == "session_unavailable" and error.value.retryable
        assert loop.time() - begun_at == pytest.approx(router.limits.patience_s, abs=0.1)
        assert router.retries > 20


@virtual
async def test_replicas_are_linked_before_anybody_needs_them() -> None:
    async with cluster(replicas=2) as made:
        links = made.gateways["g1"].router.links
        await advance(0.1)
        assert all(links.member(member(node)) is not None for node in made.replicas.values())
        late = await made.add_replica("r3")
        await advance(made.router_limits.view_s + 0.1)
        assert links.member(member(late)) is not None


@virtual
async def test_a_command_that_waits_is_answered_when_a_replica_comes() -> None:
    async with cluster(replicas=0) as made:
        creating = asyncio.create_task(made.gateways["g1"].create("one"))
        await advance(3.0)
        await made.add_replica("r1")
        assert made.owner(await creating) == "r1"


@virtual
async def test_an_answer_that_is_an_error_is_passed_on_at_once() -> None:
    async with cluster(replicas=1) as made:
        router = made.gateways["g1"].router
        with pytest.raises(NotFound):
            await router.execute(delete("nowhere"))
        assert router.retries == 0


@virtual
async def test_the_end_of_a_replica_is_survived_by_another() -> None:
    async with cluster(replicas=2) as made:
        await all_met(made)
        gateway = made.gateways["g1"]
        key = await gateway.create("one")
        owner = made.owner(key)
        await made.replicas[owner].kill()
        await gateway.say(key, tokens=3)
        assert made.owner(key) not in ("", owner) and ReplicaId(owner) != made.owner(key)
