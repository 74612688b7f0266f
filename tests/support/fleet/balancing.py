"""Has the product's `Rebalancer` judge each crowded replica of a simulated fleet, as that replica would by itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from actors.handoff.planner import HandoffPlanner
from actors.handoff.rebalance import RebalanceLimits, Rebalancer
from sessions.model.types import ReplicaId
from sessions.ports import Member, View
from tests.support.fleet.placed import MODEL

REBALANCE = RebalanceLimits()


class Balancing:
    """`surplus` gives how many sessions are to leave a replica and for which other one."""

    def __init__(self, slots: int) -> None:
        self._member: Member
        self._least: Member
        self._limits: Mapping[ReplicaId, float] = {}
        planner = SimpleNamespace(
            runtime=SimpleNamespace(identity=SimpleNamespace(replica=None)),
            engine=SimpleNamespace(info=SimpleNamespace(model=MODEL, slots=slots)),
            view=View(0, ()),
            other_members=lambda: [self._least],
            can_take=lambda member: not member.draining,
        )
        self._planner = planner
        self._rebalancer = Rebalancer(cast(HandoffPlanner, planner), self, load=lambda: self._member.load)

    def limits(self, view: View, *, model: str | None = None) -> Mapping[ReplicaId, float]:
        """Implements `PlacementLimits`."""
        return self._limits

    def look(self, limits: Mapping[ReplicaId, float]) -> None:
        """The bounds of the view that replicas have now."""
        self._limits = limits

    def surplus(self, member: Member, least: Member) -> tuple[int, Any]:
        """`least`: the least loaded of the members, which is all that it looks for among them."""
        self._member, self._least = member, least
        self._planner.runtime.identity.replica = member.replica
        return self._rebalancer.surplus()
