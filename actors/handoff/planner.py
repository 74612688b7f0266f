"""Chooses where a replica's sessions go and hands them off: what drain, rebalancing, failover and operators share.

Decides the target alone. When a session is to leave is its caller's, how it leaves is `actors.handoff.source`'s.
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
    """The sessions of one replica, and the others that could have them."""

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
        """The other replicas."""
        me = self.runtime.identity.replica
        return [member for member in self.view.members if member.replica != me]

    def can_take(self, member: Member) -> bool:
        """It serves our model and takes sessions."""
        return member.model == self.engine.info.model and not member.draining

    def choose_target(self, key: SessionKey) -> Member | None:
        """Where placement would have a session, if not here. None: there is no other replica for it."""
        me = self.runtime.identity.replica
        return self._placement.choose(key, self.view, model=self.engine.info.model, avoid=[me])

    async def try_hand_off(self, key: SessionKey, target: Member) -> bool:
        """Whether the session has moved; why it has not is in the log."""
        try:
            await self.source.hand_off(key, target)
        except HandoffAbandoned as reason:
            log.info("handoff_abandoned", session=key.session, tenant=key.tenant, reason=str(reason))
        except SessileError as error:  # it went by another way
            log.info("handoff_overtaken", session=key.session, tenant=key.tenant, error=error.code)
        else:
            return True
        return False
