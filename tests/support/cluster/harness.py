"""A cluster in one process under virtual time: real routers, links, hosts, runtimes and engines on a memory network.

Each process of the cluster has a `Power`: everything that it says to the journal or the directory passes there, so that
a killed one says nothing more and a stopped one says it late. Nothing of the product knows of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import msgspec

from actors.cluster.compatibility import fingerprint_of
from actors.cluster.placement import BoundedRendezvous
from actors.directory.memory import MemoryDirectory
from actors.directory.rules import DirectoryState as DirectoryStore
from actors.hosting.runtime import RuntimeLimits
from actors.hosting.services import Inference, Stores
from actors.maintenance.sweeps import SweepLimits
from actors.peer.client import Connector
from actors.peer.links import LinkLimits
from actors.peer.server import PeerEndpoint
from actors.replica import PeerNetwork, Replica, ReplicaLimits
from actors.routing.router import Router
from actors.routing.router_limits import RouterLimits
from inference.simulated import SimulatedEngine, SimulatedOptions
from persistence.memory.database import MemoryDatabase
from persistence.memory.journal import MemoryJournal
from persistence.memory.store import MemoryStore
from sessions.clock import Clock
from sessions.model import commands as cm
from sessions.model.errors import Unavailable
from sessions.model.request import request_of
from sessions.model.types import (
    CommandId,
    Principal,
    ReplicaId,
    ResponseId,
    SessionId,
    SessionKey,
    TenantId,
    Tool,
    UnixMs,
)
from sessions.ports import Engine, Member, Published, ServerTools
from sessions.routing.models_file import NO_POOLS, PoolsNow
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.cluster.checker import Checker
from tests.support.cluster.memory_network import MemoryNetwork
from tests.support.stores.tables import head_of
from tests.support.virtual_time import advance, until

ALICE = Principal(tenant=TenantId("acme"), key_id="alice", user="alice")
JOURNAL_S = 0.0015
DIRECTORY_S = 0.0004
NETWORK_S = 0.0002
FAST = SimulatedOptions(step_base_s=0.02, answer_tokens_mean=0, slots=16)


class Power:
    """Whether a process runs. What it says passes here."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._on = asyncio.Event()
        self._on.set()
        self.dead = False
        self.passed = 0
        self.on_pass: Callable[[int], Awaitable[None]] | None = None  # a test's chance to do something just here

    def stop(self) -> None:
        self._on.clear()

    def wake(self) -> None:
        self._on.set()

    def kill(self) -> None:
        self.dead = True
        self._on.set()

    async def passing(self, seconds: float = 0.0) -> None:
        """Returns when the process may go on; raises when it is dead."""
        if seconds:
            await asyncio.sleep(seconds)
        self.passed += 1
        if self.on_pass is not None:
            await self.on_pass(self.passed)
        await self._on.wait()
        if self.dead:
            raise Unavailable("dead", f"{self.name} was killed")


class DirectoryFaults:
    """The way of one process to the directory."""

    def __init__(self, power: Power, cluster: Cluster) -> None:
        self._power = power
        self._cluster = cluster

    async def request(self, operation: str) -> None:
        await self._power.passing(DIRECTORY_S)
        if self._cluster.directory_away:
            raise Unavailable("directory_unavailable", "away")

    async def reply(self, operation: str) -> None:
        await self._power.passing()


class Reader:
    """Somebody who reads a session through a gateway: told by a sink, and by the journal where that leaves a gap."""

    def __init__(self, cluster: Cluster, gateway: GatewayNode, key: SessionKey) -> None:
        self.key = key
        self.top = 0
        self.epoch = ""
        self.told: list[tuple[float, int]] = []  # (when, offset)
        self._cluster = cluster
        self._stop = gateway.router.watch(key, self._sink)

    def _sink(self, published: Published) -> None:
        assert published.key == self.key
        now = asyncio.get_running_loop().time()
        offsets = [record.offset for record in published.records]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), "a batch has a hole"
        for record in published.records:
            self._cluster.checker.shown(self.key, published.epoch, record)
            self.told.append((now, record.offset))
        if published.epoch != self.epoch:
            self.epoch, self.top = published.epoch, 0
        self.top = max(self.top, offsets[-1])

    async def reaches(self, top: int, *, limit_s: float = 60.0) -> None:
        await until(lambda: self.top >= top, limit_s=limit_s)

    def gaps_s(self) -> list[float]:
        """The times between tellings."""
        times = [when for when, _ in self.told]
        return [later - earlier for earlier, later in pairwise(times)]

    def close(self) -> None:
        self._stop()


class ReplicaNode:
    """A replica process."""

    def __init__(self, cluster: Cluster, name: str, engine: Engine) -> None:
        self.name = ReplicaId(name)
        self.engine = engine
        self.power = Power(name)
        self.replica: Replica
        self._cluster = cluster
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def ready(self) -> ReplicaNode:
        await asyncio.wait((self._ready, self._task), return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()
        return self

    async def _run(self) -> None:
        cluster = self._cluster
        journal = MemoryJournal(cluster.store, medium=self._medium)
        directory = MemoryDirectory(
            cluster.directory_store, lease_ttl_s=cluster.lease_ttl_s, faults=DirectoryFaults(self.power, cluster)
        )
        await journal.open()
        await directory.open()
        await self.engine.start()
        member = Member(
            replica=self.name,
            incarnation=cluster.new_id(),
            address="",
            model=self.engine.info.model,
            fingerprint=fingerprint_of(self.engine),
        )
        self.replica = Replica(
            member,
            stores=Stores(MemoryStore(journal=journal), directory),
            inference=Inference(
                self.engine,
                KeywordFilterSet(),
                pools=cluster.pools,
                tools=cluster.tools(self.power) if cluster.tools is not None else None,
            ),
            network=PeerNetwork(
                self._listen, cluster.connector(self.name, "replica", member.fingerprint, member.model)
            ),
            clock=cluster.clock,
            limits=cluster.replica_limits,
        )
        try:
            async with self.replica:
                if not self._ready.done():
                    self._ready.set_result(None)
                await self._leave.wait()
        finally:
            await self.engine.close()
            await directory.close()
            await journal.close()

    async def _listen(self, host: PeerEndpoint) -> str:
        self._cluster.network.listen(self.name, host.accept)
        return self.name

    async def _medium(self, call: str, key: SessionKey | None, effect: Callable[[], Any]) -> Any:
        await self.power.passing(JOURNAL_S if call in ("append", "grant") else JOURNAL_S / 3)
        if self._cluster.journal_away:
            raise Unavailable("journal_unavailable", "away")
        result = effect()
        if call in ("append", "grant") and key is not None:
            self._cluster.checker.wrote(self.name, call, key)
        await self.power.passing()
        return result

    async def kill(self) -> None:
        """kill -9: nothing more leaves this process, its connections break, and nobody listens there."""
        self.power.kill()
        self._cluster.network.unlisten(self.name)
        self._cluster.network.cut(self.name)
        self._task.cancel()
        await asyncio.sleep(0)

    def stop(self) -> None:
        """SIGSTOP: nothing leaves, nothing arrives, nothing breaks."""
        self.power.stop()
        for lane in self._cluster.lanes_of(self.name):
            lane.hold()

    def wake(self) -> None:
        self.power.wake()
        for lane in self._cluster.lanes_of(self.name):
            lane.release()

    async def end(self) -> None:
        """SIGTERM without a drain: leaves in order."""
        self._leave.set()
        await asyncio.wait((self._task,))
        self._cluster.network.unlisten(self.name)
        self._cluster.network.cut(self.name)
        self._task.result()

    async def finish(self) -> None:
        """For the end of a test: whatever state it is in."""
        self.power.kill()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class GatewayNode:
    """A gateway process, without its clients."""

    def __init__(self, cluster: Cluster, name: str, router: Router) -> None:
        self.name = name
        self.router = router
        self.cluster = cluster

    async def create(
        self, session: str, principal: Principal = ALICE, *, tools: tuple[Tool, ...] = (), model: str | None = None
    ) -> SessionKey:
        ok = await self.router.execute(
            request_of(
                principal,
                cm.SessionCreate(id=self.cluster.command_id(), session=SessionId(session), tools=tools, model=model),
            )
        )
        assert ok.session is not None
        return SessionKey(principal.tenant, ok.session)

    async def say(
        self, key: SessionKey, text: str = "Tell me a story.", *, tokens: int = 40, id: str | None = None
    ) -> cm.Ok:
        command = cm.MessageCreate(
            id=CommandId(id) if id is not None else self.cluster.command_id(),
            session=key.session,
            content=text,
            max_output_tokens=tokens,
        )
        return await self.router.execute(request_of(ALICE, command))

    async def cancel(self, key: SessionKey, response_id: ResponseId) -> cm.Ok:
        return await self.router.execute(
            request_of(
                ALICE, cm.ResponseCancel(id=self.cluster.command_id(), session=key.session, response_id=response_id)
            )
        )

    def read(self, key: SessionKey) -> Reader:
        return Reader(self.cluster, self, key)


class Cluster:
    """Everything that the processes share, and the processes."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.lease_ttl_s = 6.0
        self.directory_away = False
        self.journal_away = False
        self.clock = Clock(self.now_ms, self.new_id)
        self.store = MemoryDatabase(new_id=self.new_id)
        self.directory_store = DirectoryStore()
        self.network = MemoryNetwork()
        self.checker = Checker(self.store)
        self.replicas: dict[str, ReplicaNode] = {}
        self.gateways: dict[str, GatewayNode] = {}
        self.engine_options = FAST
        self.pools: PoolsNow | None = None  # the models file, of replicas and gateways made from now on
        self.tools: Callable[[Power], ServerTools] | None = None  # of replicas made from now on
        self.replica_limits = ReplicaLimits(
            runtime=RuntimeLimits(), sweeps=SweepLimits(), links=LinkLimits(), lease_ttl_s=self.lease_ttl_s
        )
        self.router_limits = RouterLimits(lease_ttl_s=self.lease_ttl_s)
        self._ids = 0
        self._exits: list[Callable[[], Any]] = []
        self._background: list[asyncio.Task[None]] = []

    def new_id(self) -> str:
        return f"{self.rng.getrandbits(64):016x}"

    def command_id(self) -> CommandId:
        self._ids += 1
        return CommandId(f"cmd{self._ids:06d}")

    def now_ms(self) -> UnixMs:
        return UnixMs(1_700_000_000_000 + int(asyncio.get_running_loop().time() * 1000))

    def lanes_of(self, name: str) -> list[Any]:
        places = {*self.replicas, *self.gateways} - {name}
        return [self.lane(a, b) for place in sorted(places) for a, b in ((place, name), (name, place))]

    def lane(self, source: str, target: str) -> Any:
        lane = self.network.lane(source, target)
        lane.delay_s = lambda: NETWORK_S
        return lane

    def connector(self, name: str, kind: Any, fingerprint: str | None = None, model: str = "") -> Connector:
        return Connector(
            self.network.dialer(name),
            kind=kind,
            name=name,
            fingerprint=fingerprint,
            model=model,
            limits=self.replica_limits.links,
        )

    async def add_replica(self, name: str, engine: Engine | None = None) -> ReplicaNode:
        node = self.replicas[name] = ReplicaNode(self, name, engine or SimulatedEngine(self.engine_options))
        self.lanes_of(name)
        return await node.ready()

    async def add_gateway(self, name: str) -> GatewayNode:
        power = Power(name)
        directory = MemoryDirectory(
            self.directory_store, lease_ttl_s=self.lease_ttl_s, faults=DirectoryFaults(power, self)
        )
        journal = MemoryJournal(self.store, medium=self._medium)
        await directory.open()
        await journal.open()
        router = Router(
            gateway=name,
            directory=directory,
            journal=journal,
            placement=BoundedRendezvous(),
            connect=self.connector(name, "gateway"),
            rng=random.Random(self.rng.random()),
            limits=self.router_limits,
            pools=self.pools or (lambda: NO_POOLS),
        )
        await router.__aenter__()

        async def leave() -> None:
            await router.__aexit__(None, None, None)
            await directory.close()
            await journal.close()

        self._exits.append(leave)
        node = self.gateways[name] = GatewayNode(self, name, router)
        self.lanes_of(name)
        return node

    async def _medium(self, call: str, key: SessionKey | None, effect: Callable[[], Any]) -> Any:
        await asyncio.sleep(JOURNAL_S / 3)
        if self.journal_away:
            raise Unavailable("journal_unavailable", "away")
        return effect()

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs something until it ends or the cluster does."""
        self._background.append(asyncio.get_running_loop().create_task(work))

    # -- what tests ask -----------------------------------------------------------------------------------------------

    def owner(self, key: SessionKey) -> str:
        """The replica that holds a session in memory, by looking."""
        living = {name: node for name, node in self.replicas.items() if not node.power.dead}
        holders = [name for name, node in living.items() if node.replica.runtime.actor(key) is not None]
        return holders[0] if len(holders) == 1 else ",".join(holders)

    def top(self, key: SessionKey) -> int:
        head = head_of(self.store, key)
        return 0 if head is None else head.top

    async def at_rest(self, key: SessionKey, *, limit_s: float = 120.0) -> int:
        """Waits until no turn of a session is open; returns its top."""

        def rests() -> bool:
            head = head_of(self.store, key)
            return head is not None and head.top > 0 and not head.open

        await until(rests, limit_s=limit_s)
        return self.top(key)

    async def writes(self, key: SessionKey, more: int = 3) -> int:
        """Waits until a session's log has grown by some records; returns its top."""
        wanted = self.top(key) + more
        await until(lambda: self.top(key) >= wanted, limit_s=60.0)
        return self.top(key)

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for leave in reversed(self._exits):
            await leave()
        await asyncio.gather(*(node.finish() for node in self.replicas.values()))
        await self.network.close()


@asynccontextmanager
async def cluster(replicas: int = 2, gateways: int = 1, *, seed: int = 0, **limits: Any) -> AsyncIterator[Cluster]:
    """A cluster of replicas r1, r2 ... and gateways g1, g2 ...; the checker has the last word."""
    made = Cluster(seed)
    for name, value in limits.items():
        setattr(made, name, value)
    try:
        for number in range(1, replicas + 1):
            await made.add_replica(f"r{number}")
        for number in range(1, gateways + 1):
            await made.add_gateway(f"g{number}")
        yield made
        made.checker.final()
    finally:
        await made.close()


def with_runtime(limits: ReplicaLimits, **changes: Any) -> ReplicaLimits:
    return msgspec.structs.replace(limits, runtime=msgspec.structs.replace(limits.runtime, **changes))


__all__ = ["ALICE", "Cluster", "GatewayNode", "Reader", "ReplicaNode", "advance", "cluster", "until", "with_runtime"]
