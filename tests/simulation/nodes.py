"""The processes of a simulated cluster: replicas and gateways, put together as `app.py` does, on our surroundings."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from actors.cluster.placement import BoundedRendezvous
from actors.directory.memory import MemoryDirectory
from actors.hosting.ownership import STOOD_STILL_S, TICK_S
from actors.hosting.services import Inference, Stores
from actors.peer.client import Connector
from actors.peer.links import LinkLimits
from actors.peer.server import PeerEndpoint
from actors.replica import PeerNetwork, Replica
from actors.routing.router import Router
from inference.simulated.vocabulary import decode
from persistence.memory.journal import MemoryJournal
from sessions.clock import Clock
from sessions.model.errors import Unavailable
from sessions.model.types import Principal, ReplicaId, SessionKey, TenantId
from sessions.ports import Member
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.simulation.loop import Process
from tests.simulation.oracle import Speaker
from tests.simulation.sockets import Wire
from tests.simulation.stores import Medium, Way
from tests.simulation.surroundings import Surroundings
from transport.auth.authenticator import Authenticator, key_digest
from transport.auth.origins import OriginPolicy
from transport.gateway import Gateway, GatewayServices
from transport.protocol.connection import ConnectionLimits
from transport.websocket.connections import WebSocketConnections

ALICE = Principal(tenant=TenantId("acme"), key_id="alice", user="alice")
MALLORY = Principal(tenant=TenantId("acme"), key_id="mallory", user="mallory")
BOB = Principal(tenant=TenantId("lost"), key_id="bob", user="bob")  # of a tenant whose keys are destroyed
KEYS = {key_digest("alice"): ALICE, key_digest("mallory"): MALLORY, key_digest("bob"): BOB}
END_S = 20.0


class Node:
    """A process with its ways to the stores. `life` is its main task."""

    def __init__(self, cluster: Surroundings, name: str) -> None:
        self.name = name
        self.cluster = cluster
        self.world = cluster.world
        self.process = Process(name)
        cluster.processes.append(self.process)
        rng = self.world.chance(f"{name}/{len(cluster.processes)}")
        self.rng = rng
        self.journal = MemoryJournal(
            cluster.store, medium=Medium(self.world, self.process, cluster.store, cluster.journal_trouble, rng)
        )
        self.directory = MemoryDirectory(
            cluster.directory,
            lease_ttl_s=cluster.config.lease_ttl_s,
            faults=Way(self.world, self.process, cluster.directory_trouble, rng),
        )
        self.ready: asyncio.Future[None] = self.world.loop.create_future()
        self.leave = asyncio.Event()
        self.moves: list[asyncio.Task[Any]] = []  # what others had it do, that ends with it
        self.gone = False  # dead, or ended in order
        self.born_at = self.world.loop.now
        self.joined_at = float("inf")
        self.woke_at = 0.0  # from its last long sleep
        self._stopped_at = 0.0
        self.died: asyncio.Future[None] = self.world.loop.create_future()
        self.life = self.process.spawn(self._live())

    async def _live(self) -> None:
        raise NotImplementedError

    def connector(self, kind: Any, fingerprint: str | None, limits: LinkLimits) -> Connector:
        return Connector(
            self.cluster.network.dialer(self.name), kind=kind, name=self.name, fingerprint=fingerprint, limits=limits
        )

    def stop(self) -> None:
        """SIGSTOP."""
        self._stopped_at = self.world.loop.now
        self.process.stop()

    def wake(self) -> None:
        """SIGCONT."""
        self.process.wake()
        if self.world.loop.now - self._stopped_at > TICK_S + STOOD_STILL_S + 0.3:  # long enough to be noticed
            self.woke_at = self.world.loop.now

    def kill(self) -> None:
        """kill -9, at this instruction."""
        self.world.trace(self.name, "killed")
        if not self.gone:
            self.gone = True
            self.died.set_result(None)
            self.process.kill()
            self.cluster.network.died(self.name)

    @property
    def up(self) -> bool:
        return self.ready.done() and not self.gone and not self.leave.is_set()

    async def end(self) -> None:
        """SIGTERM: leaves in order, and leaves nothing behind."""
        self.leave.set()
        await asyncio.wait((self.life, self.died), timeout=END_S, return_when=asyncio.FIRST_COMPLETED)
        if self.process.dead:
            return
        self.gone = True
        self.cluster.network.died(self.name)
        if not self.life.done():
            self.world.violation(f"{self.name} does not end")
            return
        if (error := self.life.exception()) is not None:
            self.world.violation(f"{self.name} failed: {error!r}")
        await asyncio.sleep(0.01)
        if self.moves:  # hand-offs that the nemesis asked for
            await asyncio.wait(self.moves, timeout=END_S)
        if left := self.process.left():
            self.world.violation(f"{self.name} has left tasks behind: {[task.get_coro() for task in left]}")
        await self.directory.close()
        await self.journal.close()


class ReplicaNode(Node):
    def __init__(self, cluster: Surroundings, name: str) -> None:
        options = msgspec.structs.replace(cluster.config.engine, model=cluster.config.model_at(name))
        self.engine = Speaker(options)
        self.engine.on_prompt = self._prompted
        self.replica: Replica
        self.draining = False
        super().__init__(cluster, name)

    async def _live(self) -> None:
        limits = self.cluster.config.replica
        await self.journal.open()
        await self.directory.open()
        await self.engine.start()
        while True:  # as a supervisor would, while the directory is away
            member = Member(
                replica=ReplicaId(self.name),
                incarnation=self.world.new_id(),
                address="",
                model=self.engine.info.model,
                fingerprint="speaker/1",
            )
            self.replica = Replica(
                member,
                stores=Stores(self.cluster.store.views(self.journal), self.directory),
                inference=Inference(self.engine, KeywordFilterSet(), pools=self.cluster.pools),
                network=PeerNetwork(self._listen, self.connector("replica", member.fingerprint, limits.links)),
                clock=Clock(self.world.clock(self.name), self.world.new_id),
                limits=limits,
            )
            try:
                await self.replica.__aenter__()
                self.joined_at = self.world.loop.now
                break
            except Unavailable as error:
                if self.world.faultless:
                    raise
                self.world.trace(self.name, "did not start", repr(error))
                self.cluster.network.died(self.name)
                await asyncio.sleep(0.3)
        self.ready.set_result(None)
        try:
            await self.leave.wait()
        finally:
            await self.replica.__aexit__(None, None, None)
            self.cluster.network.stop_serving(self.name)
        await self.engine.close()

    def _prompted(self, prompt: Iterable[int]) -> None:
        if self.world.taken_back:
            self.world.shown(decode(prompt).encode(), f"a prompt at {self.name}")

    async def _listen(self, host: PeerEndpoint) -> str:
        self.cluster.network.listen(self.name, self.process, host.accept)
        return self.name

    def kill(self) -> None:
        super().kill()
        self.world.kills.append(self.world.loop.now)

    def member(self) -> Member | None:
        return self.replica.membership.member


class GatewayNode(Node):
    def __init__(self, cluster: Surroundings, name: str) -> None:
        self.router: Router
        self.gateway: Gateway
        self.door: WebSocketConnections
        self.wires: dict[Wire, None] = {}
        super().__init__(cluster, name)

    async def _live(self) -> None:
        config = self.cluster.config
        await self.journal.open()
        await self.directory.open()
        self.router = Router(
            gateway=f"{self.name}/{self.world.new_id()}",
            directory=self.directory,
            journal=self.journal,
            placement=BoundedRendezvous(),
            connect=self.connector("gateway", None, config.router.links),
            rng=random.Random(self.rng.random()),
            limits=config.router,
            pools=self.cluster.pools,
        )
        async with self.router:
            clock = Clock(self.world.clock(self.name), self.world.new_id)
            origins = OriginPolicy(("*",), hosts=("sessile.test",))
            access = Authenticator(KEYS, clock=self.world.loop.time, now_ms=clock.now_ms, origins=origins)
            store, services = self.cluster.store.views(self.journal), GatewayServices(pools=self.cluster.pools)
            self.gateway = Gateway(self.router, store, access, clock, limits=config.gateway, services=services)
            self.door = WebSocketConnections(self.gateway, config.connection, 1000)
            self.gateway.start()
            self.ready.set_result(None)
            await self.leave.wait()
            self.gateway.draining = True
            for wire in list(self.wires):
                wire.goaway()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.door.empty.wait()
            await self.gateway.close()
            self.door.wheel.close()
        for wire in self.wires:  # whoever has not left goes with the process's sockets
            wire.died()

    def connect(
        self, *, binary: bool, on_message: Callable[[dict[str, Any]], None], on_end: Callable[[int], None]
    ) -> Wire | None:
        """A client's connection; None where nobody listens."""
        if self.gone or not self.ready.done():
            return None
        wire = Wire(self.world, self.process, self.door, self.rng, binary=binary, on_message=on_message, on_end=on_end)
        self.wires = {each: None for each in self.wires if not each.over}
        self.wires[wire] = None
        return wire

    def kill(self) -> None:
        super().kill()
        for wire in self.wires:  # their sockets reset
            wire.died()


__all__ = ["ALICE", "BOB", "MALLORY", "ConnectionLimits", "GatewayNode", "ReplicaNode", "SessionKey"]
