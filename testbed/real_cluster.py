"""A cluster in one process on real time: gRPC on loopback, real runtimes, simulated engines, any journal.

Tests and benches share it. Nothing here polls: whoever waits, waits for what a reader is told.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any

from actors.cluster.placement import BoundedRendezvous
from actors.directory import Leases
from actors.directory.memory import MemoryDirectory
from actors.directory.rules import DirectoryState as DirectoryStore
from actors.hosting.services import Inference, Stores
from actors.peer.client import Connector
from actors.peer.server import PeerEndpoint
from actors.replica import PeerNetwork, Replica, ReplicaLimits
from actors.routing.router import Router
from actors.routing.router_limits import RouterLimits
from inference.simulated import SimulatedEngine, SimulatedOptions
from persistence.memory.store import MemoryStore
from sessions.clock import Clock
from sessions.model import commands as cm
from sessions.model.events import Record, ResponseCompleted, ResponseFailed, ResponseIncomplete
from sessions.model.request import request_of
from sessions.model.types import CommandId, Principal, ReplicaId, ResponseId, SessionId, SessionKey, TenantId, UnixMs
from sessions.ports import Engine, Member, Published
from sessions.routing.models_file import NO_POOLS, PoolsNow
from sessions.store import Store
from sessions.turn.keyword_filter import KeywordFilterSet
from transport.peer import GrpcDialer, PeerSecurity, PeerServer

ALICE = Principal(tenant=TenantId("acme"), key_id="alice", user="alice")
TOKEN = "a token that nobody guesses"
FAST = SimulatedOptions(step_base_s=0.005, answer_tokens_mean=0, slots=64)


def now_ms() -> UnixMs:
    return UnixMs(time.time_ns() // 1_000_000)


def new_id() -> str:
    return secrets.token_hex(8)


class Story:
    """A session as one reader is told of it."""

    def __init__(self, router: Router, key: SessionKey) -> None:
        self.key = key
        self.records: dict[int, Record] = {}
        self.told: list[tuple[float, int]] = []
        self.epochs: set[str] = set()
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._stop = router.watch(key, self._sink)

    def _sink(self, published: Published) -> None:
        now = time.perf_counter()
        self.epochs.add(published.epoch)
        for record in published.records:
            seen = self.records.setdefault(record.offset, record)
            assert seen.event == record.event, f"{record.offset} was shown twice, differently"
            self.told.append((now, record.offset))
        for condition, future in list(self._waiters):
            if condition():
                self._waiters.remove((condition, future))
                if not future.done():
                    future.set_result(None)

    @property
    def top(self) -> int:
        return max(self.records, default=0)

    async def until(self, condition: Callable[[], bool], limit_s: float = 60.0) -> None:
        """Waits for something that becomes true when a record is told."""
        if not condition():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((condition, future))
            async with asyncio.timeout(limit_s):
                await future

    async def grows(self, by: int = 3) -> int:
        wanted = self.top + by
        await self.until(lambda: self.top >= wanted)
        return self.top

    def ended(self, response_id: ResponseId) -> bool:
        kinds = ResponseCompleted | ResponseIncomplete | ResponseFailed
        return any(isinstance(r.event, kinds) and r.event.response_id == response_id for r in self.records.values())

    async def ends(self, response_id: ResponseId | None, limit_s: float = 60.0) -> None:
        assert response_id is not None
        await self.until(lambda: self.ended(response_id), limit_s)

    def gaps_s(self) -> list[float]:
        return [later[0] - earlier[0] for earlier, later in pairwise(self.told)]

    def close(self) -> None:
        self._stop()


class RealReplica:
    """A replica behind a real port. `crash` takes the port and its connections away at once."""

    def __init__(self, replica: Replica, server: PeerServer, stack: AsyncExitStack) -> None:
        self.replica = replica
        self.server = server
        self._stack = stack

    @property
    def member(self) -> Member:
        member = self.replica.membership.member
        assert member is not None
        return member

    async def crash(self) -> None:
        """Its port is closed and its connections break; what it still does is its own business."""
        await self.server.stop(0)

    async def close(self) -> None:
        await self._stack.aclose()


class RealCluster:
    """What the processes share, and the processes."""

    def __init__(self, store: Store, security: PeerSecurity) -> None:
        self.store = store
        self.journal = store.journal
        self.security = security
        self.directory_store = DirectoryStore()
        self.replicas: dict[str, RealReplica] = {}
        self.limits = ReplicaLimits()
        self.pools: PoolsNow | None = None  # the models file, of replicas and gateways made from now on
        self._stack = AsyncExitStack()

    async def directory(self, stack: AsyncExitStack) -> Leases:
        directory = MemoryDirectory(self.directory_store)
        await directory.open()
        stack.push_async_callback(directory.close)
        return directory

    async def add_replica(
        self, name: str, engine: Engine | None = None, *, security: PeerSecurity | None = None, fingerprint: str = ""
    ) -> RealReplica:
        stack = AsyncExitStack()
        engine = engine or SimulatedEngine(FAST)
        await engine.start()
        stack.push_async_callback(engine.close)
        own = fingerprint or f"{engine.info.model_fingerprint}/{engine.tokenizer.fingerprint}"
        security = security or self.security
        servers: list[PeerServer] = []

        async def listen(host: PeerEndpoint) -> str:
            server = PeerServer(host.accept, security=security)
            servers.append(server)
            return f"127.0.0.1:{await server.start('127.0.0.1', 0)}"

        replica = Replica(
            Member(replica=ReplicaId(name), incarnation=new_id(), address="", model=engine.info.model, fingerprint=own),
            stores=Stores(self.store, await self.directory(stack)),
            inference=Inference(engine, KeywordFilterSet(), pools=self.pools),
            network=PeerNetwork(
                listen,
                Connector(GrpcDialer(security), kind="replica", name=name, fingerprint=own, model=engine.info.model),
            ),
            clock=Clock(now_ms, new_id),
            limits=self.limits,
        )
        await stack.enter_async_context(replica)
        stack.push_async_callback(servers[0].stop, 0)
        made = self.replicas[name] = RealReplica(replica, servers[0], stack)
        self._stack.push_async_callback(made.close)
        return made

    async def add_gateway(
        self, name: str, *, security: PeerSecurity | None = None, limits: RouterLimits | None = None
    ) -> Router:
        stack = self._stack
        return await stack.enter_async_context(
            Router(
                gateway=name,
                directory=await self.directory(stack),
                journal=self.journal,
                placement=BoundedRendezvous(),
                connect=Connector(GrpcDialer(security or self.security), kind="gateway", name=name),
                rng=random.Random(0),
                limits=limits,
                pools=self.pools or (lambda: NO_POOLS),
            )
        )

    def owner(self, key: SessionKey) -> RealReplica:
        (holder,) = [each for each in self.replicas.values() if each.replica.runtime.actor(key) is not None]
        return holder

    async def close(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def real_cluster(
    replicas: int = 2, *, store: Store | None = None, security: PeerSecurity | None = None
) -> AsyncIterator[RealCluster]:
    store = store or MemoryStore()
    await store.open()
    made = RealCluster(store, security or PeerSecurity(token=TOKEN))
    try:
        for number in range(1, replicas + 1):
            await made.add_replica(f"r{number}")
        yield made
    finally:
        await made.close()
        await store.close()


async def create(router: Router, session: str, **settings: Any) -> SessionKey:
    command = cm.SessionCreate(id=CommandId(new_id()), session=SessionId(session), **settings)
    ok = await router.execute(request_of(ALICE, command))
    assert ok.session is not None
    return SessionKey(ALICE.tenant, ok.session)


async def say(router: Router, key: SessionKey, text: str = "Tell me a story.", *, tokens: int = 40) -> ResponseId:
    ok = await router.execute(
        request_of(
            ALICE, cm.MessageCreate(id=CommandId(new_id()), session=key.session, content=text, max_output_tokens=tokens)
        )
    )
    assert ok.response_id is not None
    return ok.response_id
