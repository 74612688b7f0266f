"""One replica of a cluster, put together: its lease, its actors, their readers on peer links, and its sweeps.

The order is what this module decides. Start: actors, then the peer link listens (its address is announced), then the
lease. While it runs: what the directory lost is claimed again, what may have been taken meanwhile is confirmed by the
journal, and load beyond its bound goes elsewhere. `drain` empties it. Stop: the lease goes back last, so that until
then whoever asks is told where the sessions went.

A replica whose place another process has taken ends with that error: it must not go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any

import msgspec
import structlog

from actors.cluster.compatibility import check_compatibility
from actors.cluster.membership import Change, Membership
from actors.cluster.placement import BoundedRendezvous
from actors.cluster.previous_owner import PreviousOwnerQuery
from actors.directory import Leases, partition_of
from actors.handoff.drain import BY_SIGNAL, Drain, DrainLimits, Report
from actors.handoff.engine_failover import EngineFailover
from actors.handoff.operator_handoff import OperatorHandoff
from actors.handoff.rebalance import RebalanceLimits, Rebalancer
from actors.handoff.source import HandoffLimits, HandoffSource
from actors.handoff.target import HandoffTarget
from actors.hosting.runtime import Runtime, RuntimeLimits
from actors.maintenance.introspection import SessionSurvey
from actors.maintenance.kv_cleanup import announce_deletion
from actors.maintenance.sweeps import SweepLimits, Sweeps
from actors.peer.frames import PEER_PROTOCOL
from actors.peer.links import Connect, LinkLimits, Links
from actors.peer.server import PeerEndpoint
from sessions.billing.prices import PriceBook
from sessions.governance.end_user_data import EndUserStore
from sessions.governance.retention import Retention
from sessions.metrics import Metrics
from sessions.model.audit import AuditLog
from sessions.model.errors import SessileError
from sessions.model.reviews import ReviewStore
from sessions.model.types import SessionKey, UnixMs
from sessions.ports import Engine, FilterSet, Journal, Keys, Member

log = structlog.get_logger(__name__)


class ReplicaLimits(msgspec.Struct, frozen=True):
    runtime: RuntimeLimits = RuntimeLimits()
    upkeep: SweepLimits = SweepLimits()
    links: LinkLimits = LinkLimits()
    handoff: HandoffLimits = HandoffLimits()
    drain: DrainLimits = DrainLimits()
    rebalance: RebalanceLimits = RebalanceLimits()
    lease_ttl_s: float = 6.0
    renew_s: float = 2.0


Listen = Callable[
    [PeerEndpoint], Awaitable[str]
]  # begins to accept peers for the host; returns the address to announce


class Replica:
    """An async context: inside it the replica is a member. Journal, directory and engine are open already."""

    def __init__(
        self,
        member: Member,
        *,
        journal: Journal,
        directory: Leases,
        engine: Engine,
        filters: FilterSet,
        listen: Listen,
        connect: Connect,
        placement: BoundedRendezvous,
        limits: ReplicaLimits,
        now_ms: Callable[[], UnixMs],
        new_id: Callable[[], str],
        keys: Keys | None = None,
        reviews: ReviewStore | None = None,
        measures: Metrics | None = None,
        prices: PriceBook | None = None,
        personal: EndUserStore | None = None,
        retention: Callable[[], Retention] = Retention,
        audit: AuditLog | None = None,
    ) -> None:
        """`member.address` is what `listen` returns; the rest of `member` is announced as it is. `connect` dials
        other replicas, for hand-offs."""
        member = msgspec.structs.replace(member, protocol=PEER_PROTOCOL, engine=engine.info)
        self.engine = engine
        self._member = member
        self._directory = directory
        self.membership = Membership(
            directory, member, load=self.load, lease_ttl_s=limits.lease_ttl_s, renew_s=limits.renew_s
        )
        self.runtime = Runtime(
            replica=member.replica,
            incarnation=member.incarnation,
            journal=journal,
            directory=directory,
            engine=engine,
            filters=filters,
            limits=limits.runtime,
            now_ms=now_ms,
            new_id=new_id,
            must_confirm=lambda: self.membership.must_confirm,
            measures=measures,
            prices=prices,
            holder=lambda key, head: self.keepers.holder(key, head),
        )
        self.links = Links(connect, spawn=self._spawn, limits=limits.links)
        self.keepers = PreviousOwnerQuery(member.replica, self.links, spawn=self._spawn, lease_ttl_s=limits.lease_ttl_s)
        self.links.add_listener(self.keepers)
        self.runtime.announce_deletion = self._announce_deletion
        self.migration = HandoffSource(self.runtime, engine, self.links, limits=limits.handoff)
        self._drain = Drain(
            self.runtime,
            engine,
            self.membership,
            self.migration,
            placement,
            limits=limits.drain,
            audit=audit,
            now_ms=now_ms,
        )
        self.rebalancer = Rebalancer(
            self.runtime,
            engine,
            self.membership,
            self.migration,
            placement,
            load=self.load,
            limits=limits.rebalance,
        )
        moving = OperatorHandoff(self.runtime, engine, self.membership, self.migration, placement)
        self.evacuation = EngineFailover(self.runtime, engine, self.membership, moving)
        self.upkeep = Sweeps(
            self.runtime,
            journal=journal,
            directory=directory,
            engine=engine,
            limits=limits.upkeep,
            now_ms=now_ms,
            keys=keys,
            reviews=reviews,
            personal=personal,
            retention=retention,
            audit=audit,
        )
        self.host = PeerEndpoint(
            self.runtime,
            fingerprint=member.fingerprint,
            reception=HandoffTarget(self.runtime, engine),
            drainer=self._drain,
            mover=moving,
            leftovers=self.upkeep.leftovers,
            surveyor=SessionSurvey(self.runtime, engine, self.membership, lambda: asyncio.get_running_loop().time()),
            limits=limits.links,
        )
        self._listen = listen
        self._tasks = asyncio.TaskGroup()
        self._running: dict[asyncio.Task[None], None] = {}
        self._unlisten: Callable[[], None] = lambda: None

    def load(self) -> float:
        """What the engine does, as a share of what it can do at the same time."""
        stats = self.engine.stats()
        return (stats.running + stats.waiting) / max(1, stats.slots)

    async def __aenter__(self) -> Replica:
        """Raises BadInput for a replica that is not like those that are there (`actors.cluster.compatibility`)."""
        check_compatibility(self._member, await self._directory.view())
        await self.runtime.__aenter__()
        try:
            self.membership.change(address=await self._listen(self.host))
            await self.membership.start()
            await self._tasks.__aenter__()
        except BaseException:
            await self.runtime.__aexit__(None, None, None)
            raise
        self._unlisten = self.membership.listen(self._changed)
        self.keepers.update(self.membership.view)
        for work in (self.membership.run(), self.upkeep.run(), self.rebalancer.run(), self.evacuation.run()):
            self._spawn(work)
        return self

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._tasks.create_task(work)
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))
        return task

    async def drain(self, report: Report = lambda handed_off, parked, left: None) -> None:
        """Hands everything off; returns when nothing is left here (`actors.handoff.drain`)."""
        await self._drain.drain(report, by=BY_SIGNAL)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unlisten()
        self._drain.close()
        await self.links.close()
        for task in list(self._running):
            task.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            await self.runtime.close()
            await self.host.close()
            try:
                await self.membership.leave()
            except SessileError as failure:  # the lease ends by itself
                log.warning("lease_not_given_back", error=failure.code)
            await self.runtime.__aexit__(None, None, None)

    async def _announce_deletion(self, key: SessionKey) -> None:
        mine = self._member
        others = [
            member
            for member in self.membership.view.members
            if member.replica != mine.replica and member.fingerprint == mine.fingerprint  # others never had its KV
        ]
        await announce_deletion(key, others, self.links)

    def _changed(self, change: Change) -> None:
        self.keepers.update(change.view)
        if change.lapsed:
            self.runtime.doubt("lease_lapsed")
        if change.rejoined:
            self.keepers.directory_lost()
            self._spawn(self._reclaim(change.rejoined))

    async def _reclaim(self, partitions: frozenset[int]) -> None:
        try:
            await self.runtime.reclaim(lambda key: partition_of(key) in partitions)
            log.info("claimed_again", partitions=len(partitions))
        except SessileError as error:  # the sweep tries again what is still unclaimed
            log.warning("not_claimed_again", error=error.code)
