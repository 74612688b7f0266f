"""Chooses where a replica's sessions go and hands them off, for drain, rebalancing, failover and operators.

It decides only the target. The callers decide when a session leaves; `actors.handoff.source` carries the hand-off out.
"""

from __future__ import annotations

import structlog

from actors.cluster.membership import Membership
from actors.cluster.placement import BoundedRendezvous
from actors.handoff.source import HandoffAbandoned, HandoffSource
from actors.hosting.runtime import Runtime
from sessions.model.errors import SessileError
from sessions.model.types import SessionKey
from sessions.ports import Engine, Member, View

log = structlog.get_logger(__name__)


class HandoffPlanner:
    """Chooses targets for one replica's sessions, and hands them off."""

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        membership: Membership,
        source: HandoffSource,
        placement: BoundedRendezvous,
    ) -> None:
        self.runtime = runtime
        self.engine = engine
        self.membership = membership
        self.source = source
        self._placement = placement

    @property
    def view(self) -> View:
        return self.membership.view

    def other_members(self) -> list[Member]:
        """Returns the other replicas of the view."""
        me = self.runtime.identity.replica
        return [member for member in self.view.members if member.replica != me]

    def can_take(self, member: Member) -> bool:
        """Returns whether a replica serves our model and is not draining."""
        return member.model == self.engine.info.model and not member.draining

    def choose_target(self, key: SessionKey) -> Member | None:
        """Returns the replica that placement chooses for a session, except this one; None if there is none."""
        me = self.runtime.identity.replica
        return self._placement.choose(key, self.view, model=self.engine.info.model, avoid=[me])

    async def try_hand_off(self, key: SessionKey, target: Member) -> bool:
        """Hands a session off. Returns whether it has moved; if not, the process's log has the reason."""
        try:
            await self.source.hand_off(key, target)
        except HandoffAbandoned as reason:
            log.info("handoff_abandoned", session=key.session, tenant=key.tenant, reason=str(reason))
        except SessileError as error:  # another replica took it
            log.info("handoff_overtaken", session=key.session, tenant=key.tenant, error=error.code)
        else:
            return True
        return False
