"""Takes a session from this replica to one that serves another model, between two turns.

The actor has decided (`sessions.actor.model_router`), and its decision is in the log before the session leaves. The
hand-off is the ordinary one, but without KV, which no other model could use: the KV here stays for as long as it is
worth its room, in case the session returns. If a switch fails the session stays, and the turn runs here.
"""

from __future__ import annotations

import structlog

from actors.cluster.placement import BoundedRendezvous
from actors.handoff.planner import HandoffPlanner
from actors.handoff.source import HandoffAbandoned
from sessions.actor.model_router import ModelSwitchPlan
from sessions.machine.inputs_and_effects import ModelChosen
from sessions.model.errors import SessileError
from sessions.model.types import ReplicaId, SessionKey
from sessions.ports import Owner

log = structlog.get_logger(__name__)


class ModelSwitching:
    """Moves sessions of one replica to replicas of other models."""

    def __init__(self, planner: HandoffPlanner, placement: BoundedRendezvous) -> None:
        self._planner = planner
        self._placement = placement

    async def switch(self, key: SessionKey, plan: ModelSwitchPlan) -> Owner | None:
        """Moves a session as planned and returns its new owner; None if it stays, and then the process's log has the
        reason."""
        runtime = self._planner.runtime
        me, about = runtime.identity.replica, {"session": key.session, "tenant": key.tenant, "model": plan.model}
        home = ReplicaId(plan.home) if plan.home else None
        target = self._placement.choose(key, self._planner.view, model=plan.model, holder=home, avoid=[me])
        actor = runtime.actor(key)
        if target is None or actor is None:
            log.info("model_switch_abandoned", **about, reason="no replica serves it")
            return None
        if actor.in_turn:
            log.info("model_switch_abandoned", **about, reason="a turn has begun")
            return None
        if plan.routing is not None:
            actor.post(ModelChosen(plan.routing))
        try:
            owner = await self._planner.source.hand_off(key, target, between_turns=True)
        except HandoffAbandoned as reason:
            log.info("model_switch_abandoned", **about, reason=str(reason))
            return None
        except SessileError as error:  # another replica took it
            log.info("model_switch_abandoned", **about, reason=error.code)
            return None
        log.info("model_switched", **about, to=target.replica)
        return owner
