"""Moves live sessions away from a replica whose load is above its bound.

Placement bounds where cold sessions go; this is for the load that grows afterwards: sessions that were idle when they
were placed and now all talk. Every replica looks only at itself. While its load is above its bound (1.25 times its
share) and the engine is nearly full, for `looks` checks in a row, it hands a few sessions off to the least loaded
replica: answers that wait for a slot first, because moving those costs least and helps at once; then idle sessions that
talked lately; running answers never, as they end by themselves.

Bounds: at most `at_once` sessions leave after each check, and only half of the difference to the target's load, because
several overloaded replicas must not all pour into one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from actors.handoff.planner import HandoffPlanner
from sessions.model.types import ReplicaId, SessionKey
from sessions.ports import Member, View


class PlacementLimits(Protocol):
    def limits(self, view: View, *, model: str | None = None) -> Mapping[ReplicaId, float]:
        """Returns the load up to which each member is within its bound (`actors.cluster.placement`)."""
        ...


class RebalanceLimits(msgspec.Struct, frozen=True):
    look_s: float = 1.0
    looks: int = 2
    at_once: int = 8
    load_min: float = 0.75  # a replica with less load needs no rebalancing
    recent_s: float = 120.0


class Rebalancer:
    """Moves sessions away from one replica while its load is too high. `run` ends only by cancellation."""

    def __init__(
        self,
        planner: HandoffPlanner,
        bounds: PlacementLimits,
        *,
        load: Callable[[], float],
        limits: RebalanceLimits | None = None,
    ) -> None:
        self.moved = 0
        self._planner = planner
        self._runtime = planner.runtime
        self._engine = planner.engine
        self._bounds = bounds
        self._load = load
        self._limits = limits or RebalanceLimits()

    async def run(self) -> None:
        above = 0
        while True:
            await asyncio.sleep(self._limits.look_s)
            surplus, target = self.surplus()
            above = above + 1 if surplus > 0 else 0
            if above >= self._limits.looks and target is not None and not self._runtime.draining:
                above = 0
                keys = self.candidates()[:surplus]
                await asyncio.gather(*(self._move(key, target) for key in keys))

    def surplus(self) -> tuple[int, Member | None]:
        """Returns how many sessions should leave now, and the replica that they should go to; 0 and None if none
        should."""
        planner, me = self._planner, self._runtime.identity.replica
        load = self._load()
        if load <= self._limits.load_min:  # the rule: then nobody looks through a large view
            return 0, None
        bound = self._bounds.limits(planner.view, model=self._engine.info.model).get(me)
        others = [member for member in planner.other_members() if planner.can_take(member) and member.weight > 0]
        if bound is None or not others or load <= bound:
            return 0, None
        target = min(others, key=lambda member: (member.load, member.replica))
        if target.load >= load:
            return 0, None
        slots = self._engine.info.slots
        return min(self._limits.at_once, math.ceil((load - target.load) / 2 * slots)), target

    def candidates(self) -> list[SessionKey]:
        """Returns the sessions that may be moved, in the order in which to move them: answers that wait for a slot,
        then sessions that have been idle only for a short time."""
        loop = asyncio.get_running_loop()
        since = loop.time() - self._limits.recent_s
        newest_first = sorted(self._runtime.actors, key=lambda actor: -actor.active_at)
        waiting = [actor.key for actor in newest_first if actor.open and not actor.is_generating]
        idle = [actor.key for actor in newest_first if not actor.busy and actor.active_at >= since]
        return waiting[: self._engine.stats().waiting] + idle

    async def _move(self, key: SessionKey, target: Member) -> None:
        self.moved += await self._planner.try_hand_off(key, target)
