"""The replicas and gateways of a simulated cluster, as they come and come back."""

from __future__ import annotations

import asyncio

from tests.simulation.nodes import GatewayNode, ReplicaNode
from tests.simulation.surroundings import Surroundings
from tests.simulation.world import World


class Members(Surroundings):
    def __init__(self, world: World, store: str = "memory") -> None:
        super().__init__(world, store)
        self.replicas: dict[str, ReplicaNode] = {}
        self.gateways: dict[str, GatewayNode] = {}

    async def add_replica(self, name: str) -> None:
        node = self.replicas[name] = ReplicaNode(self, name)
        self.network.watched = frozenset(self.replicas)
        await self._started(node)

    async def add_gateway(self, name: str) -> None:
        node = self.gateways[name] = GatewayNode(self, name)
        await self._started(node)

    async def _started(self, node: ReplicaNode | GatewayNode) -> None:
        await asyncio.wait((node.ready, node.life, node.died), return_when=asyncio.FIRST_COMPLETED)
        if node.life.done():
            self.world.violation(f"{node.name} did not start: {node.life.exception()!r}")
