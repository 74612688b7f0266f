"""What the cluster's tests begin with and look at: a session in mid-answer, who has it, what its log says."""

from __future__ import annotations

import asyncio

from actors.cluster.placement import BoundedRendezvous
from actors.handoff.planner import HandoffPlanner
from inference.simulated import SimulatedEngine
from sessions.model.events import OutputTextDelta, SessionMigrated
from sessions.model.types import SessionKey
from sessions.ports import Member
from tests.support.cluster.harness import Cluster, Reader, ReplicaNode, until
from tests.support.stores.tables import page_of


def now() -> float:
    return asyncio.get_running_loop().time()


def migrations(made: Cluster, key: SessionKey) -> list[str]:
    page = page_of(made.store, key)
    assert page is not None
    return [record.event.cause for record in page.records if isinstance(record.event, SessionMigrated)]


def text_of(made: Cluster, key: SessionKey) -> str:
    page = page_of(made.store, key)
    assert page is not None
    return "".join(record.event.delta for record in page.records if isinstance(record.event, OutputTextDelta))


async def answering(made: Cluster, reader_at: str = "g1", *, tokens: int = 150) -> tuple[SessionKey, Reader]:
    """A session in mid-answer, with a reader."""
    gateway = made.gateways["g1"]
    key = await gateway.create("one")
    reader = made.gateways[reader_at].read(key)
    await gateway.say(key, tokens=tokens)
    await made.writes(key, 5)
    return key, reader


def member(node: ReplicaNode) -> Member:
    found = node.replica.membership.member
    assert found is not None
    return found


def other(made: Cluster, name: str) -> ReplicaNode:
    return next(node for each, node in made.replicas.items() if each != name)


def simulated(node: ReplicaNode) -> SimulatedEngine:
    assert isinstance(node.engine, SimulatedEngine)
    return node.engine


def planner_of(made: Cluster, name: str) -> HandoffPlanner:
    """A hand-off planner of one replica, beside its own."""
    replica = made.replicas[name].replica
    return HandoffPlanner(replica.runtime, replica.engine, replica.membership, replica.handoff, BoundedRendezvous())


async def all_met(made: Cluster) -> None:
    """Waits until every replica has every other in its view."""
    nodes = made.replicas.values()
    await until(lambda: all(len(each.replica.membership.view.members) == len(nodes) for each in nodes))
