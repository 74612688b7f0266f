"""Composes one replica of a cluster: its lease, its actors, the peer links that reach them, hand-offs and sweeps.

The order is what this module decides. Start: actors, then the peer link listens (its address is announced), then the
lease. While it runs: what the directory lost is claimed again, what may have been taken meanwhile is confirmed by the
journal, and load beyond its bound goes elsewhere. `drain` empties it. Stop: the lease goes back last, so that until
then every request is answered with where its session went.

A replica whose place another process has taken ends with that error: it must not go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType

import msgspec
import structlog

from actors.cluster.compatibility import check_compatibility
from actors.cluster.membership import Change, Membership
from actors.cluster.placement import BoundedRendezvous
from actors.cluster.pool_states import PoolStates
from actors.cluster.previous_owner import PreviousOwnerQuery
from actors.cluster.versions import OURS
from actors.directory import partition_of
from actors.handoff.drain import BY_SIGNAL, Drain, DrainLimits, Report
from actors.handoff.engine_failover import EngineFailover
from actors.handoff.model_switch import ModelSwitching
from actors.handoff.operator_handoff import OperatorHandoff
from actors.handoff.planner import HandoffPlanner
from actors.handoff.rebalance import RebalanceLimits, Rebalancer
from actors.handoff.source import HandoffLimits, HandoffSource
from actors.handoff.target import HandoffTarget
from actors.hosting.ownership import Peers
from actors.hosting.runtime import Runtime, RuntimeLimits
from actors.hosting.services import Accounting, Inference, Stores
from actors.hosting.task_scope import TaskScope
from actors.maintenance.introspection import SessionSurvey
from actors.maintenance.kv_cleanup import announce_deletion
from actors.maintenance.sweeps import SweepLimits, Sweeps
from actors.peer.links import Connect, LinkLimits, Links, identity
from actors.peer.server import PeerEndpoint
from sessions.clock import Clock
from sessions.governance.retention import Retention
from sessions.load_history import LoadHistory
from sessions.model.errors import SessileError
from sessions.model.journal_types import Head
from sessions.ports import Member
from sessions.routing.models_file import NO_POOLS, split_head_model

log = structlog.get_logger(__name__)


class ReplicaLimits(msgspec.Struct, frozen=True):
    runtime: RuntimeLimits = RuntimeLimits()
    sweeps: SweepLimits = SweepLimits()
    links: LinkLimits = LinkLimits()
    handoff: HandoffLimits = HandoffLimits()
    drain: DrainLimits = DrainLimits()
    rebalance: RebalanceLimits = RebalanceLimits()
    lease_ttl_s: float = 6.0
    renew_s: float = 2.0


@dataclass(frozen=True, slots=True)
class PeerNetwork:
    """The ways to reach other processes: `listen` begins to accept peers for an endpoint and returns the address to
    announce; `connect` dials other replicas, for hand-offs."""

    listen: Callable[[PeerEndpoint], Awaitable[str]]
    connect: Connect


class Replica:
    """One replica of a cluster, as an async context: inside it the replica is a member. Its stores must be open and its
    engine started. It only starts and ends its parts, which are its attributes, in their order."""

    def __init__(
        self,
        member: Member,
        *,
        stores: Stores,
        inference: Inference,
        network: PeerNetwork,
        clock: Clock,
        limits: ReplicaLimits | None = None,
        accounting: Accounting | None = None,
        retention: Callable[[], Retention] = Retention,
    ) -> None:
        """The address in `member` is replaced by what `listen` returns; the rest of `member` is announced as it is."""
        limits, engine, placement = limits or ReplicaLimits(), inference.engine, BoundedRendezvous()
        member = msgspec.structs.replace(member, protocol=OURS[0], protocols=OURS, engine=engine.info)
        self._member = member
        self._directory = stores.directory
        self._listen = network.listen
        self._tasks = TaskScope()
        ttl_s = limits.lease_ttl_s
        self.engine = engine
        self.membership = Membership(
            stores.directory, member, load=self.load, lease_ttl_s=ttl_s, renew_s=limits.renew_s
        )
        self._pools = PoolStates(lambda: self.membership.view, inference.pools or (lambda: NO_POOLS))
        self.links = Links(network.connect, spawn=self._tasks.spawn, limits=limits.links)
        self.previous_owner = PreviousOwnerQuery(member.replica, self.links, spawn=self._tasks.spawn, lease_ttl_s=ttl_s)
        self.runtime = runtime = Runtime(
            identity(member),
            journal=stores.store.journal,
            directory=stores.directory,
            inference=inference,
            clock=clock,
            limits=limits.runtime,
            accounting=accounting,
            peers=Peers(
                must_confirm=lambda: self.membership.must_confirm,
                find_owner=self.previous_owner.find_owner,
                question_owner=self.previous_owner.question_owner,
                announce_deletion=lambda key: announce_deletion(key, member, self.membership.view, self.links),
                pool_states=self._pools,
                switch_model=lambda key, plan: self._switching.switch(key, plan),
            ),
        )
        self._history = LoadHistory(runtime.metrics, engine, lambda: runtime.num_present, clock.now_ms)
        self.handoff = HandoffSource(runtime, engine, self.links, limits=limits.handoff)
        planner = HandoffPlanner(runtime, engine, self.membership, self.handoff, placement)
        self._switching = ModelSwitching(planner, placement)
        self._drain = Drain(planner, clock, limits=limits.drain, audit=stores.store.audit)
        self.rebalancer = Rebalancer(planner, placement, load=self.load, limits=limits.rebalance)
        by_operator = OperatorHandoff(planner)
        self._failover = EngineFailover(planner, by_operator)
        self.sweeps = Sweeps(
            runtime, stores, engine, clock, limits=limits.sweeps, retention=retention, takes=self._takes
        )
        self.handoff_target = HandoffTarget(runtime, engine)
        self.endpoint = PeerEndpoint(
            runtime,
            member=member,
            handoffs=self.handoff_target,
            drainer=self._drain,
            mover=by_operator,
            kv_cleaner=self.sweeps.kv_cleanup,
            survey=SessionSurvey(runtime, engine, self._history, self.membership),
            limits=limits.links,
        )

    def load(self) -> float:
        """Returns running and waiting answers as a share of the engine's slots; above 1 when answers wait."""
        stats = self.engine.stats()
        return (stats.running + stats.waiting) / max(1, stats.slots)

    def _takes(self, head: Head) -> bool:
        """Returns whether this replica should take a session without an owner: the session's model is ours, or no
        replica serves it."""
        model, own = split_head_model(head.model)[1], self.engine.info
        return not model or model == own.model or model in own.aliases or self._pools.model_of(model) is None

    def unready(self) -> str | None:
        """Returns why this replica takes no sessions at the moment; None if it does."""
        if self.runtime.draining:
            return "draining"
        return "its lease has ended" if self.membership.must_confirm else self.engine.stats().away

    async def __aenter__(self) -> Replica:
        """Starts the replica. Raises BadInput if it differs from the other members (`actors.cluster.compatibility`)."""
        check_compatibility(self._member, await self._directory.view())
        await self.runtime.__aenter__()
        try:
            self.membership.change(address=await self._listen(self.endpoint))
            await self.membership.start()
            await self._tasks.__aenter__()
        except BaseException:
            await self.runtime.__aexit__(None, None, None)
            raise
        self._unlisten = self.membership.listen(self._changed)
        self.previous_owner.update(self.membership.view, vanished=self.membership.vanished)
        self._history.start()
        for work in (self.membership.run(), self.sweeps.run(), self.rebalancer.run(), self._failover.run()):
            self._tasks.spawn(work)
        return self

    async def drain(self, report: Report = lambda handed_off, parked, left: None) -> None:
        """Hands off or parks every session; returns when none is left here (`actors.handoff.drain`)."""
        await self._drain.drain(report, by=BY_SIGNAL)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unlisten()
        self._history.stop()
        self._drain.close()
        await self.links.close()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            await self.runtime.close()
            await self.endpoint.close()
            await self.handoff.close()
            try:
                await self.membership.leave()
            except SessileError as failure:  # the lease ends by itself
                log.warning("lease_release_failed", error=failure.code)
            await self.runtime.__aexit__(None, None, None)

    def _changed(self, change: Change) -> None:
        self.previous_owner.update(change.view)
        self._pools()  # so that it knows every model of every view
        if change.lapsed:
            self.runtime.reconfirm("lease_lapsed")
        if change.rejoined:
            self.previous_owner.directory_lost()
            self._tasks.spawn(self._reclaim(change.rejoined))

    async def _reclaim(self, partitions: frozenset[int]) -> None:
        try:
            await self.runtime.reclaim(lambda key: partition_of(key) in partitions)
            log.info("partitions_reclaimed", partitions=len(partitions))
        except SessileError as error:  # the sweep tries again what is still unclaimed
            log.warning("reclaim_failed", error=error.code)
