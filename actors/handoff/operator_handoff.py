"""Hands one session off on an operator's request: to the replica that they name, or to the one that placement chooses.

`actors.handoff.source` carries the hand-off out. Here its target is chosen, and the operator's answer if the session
stays. A refused request changes nothing.
"""

from __future__ import annotations

from actors.handoff.planner import HandoffPlanner
from actors.handoff.source import HandoffAbandoned
from sessions.model.authorization import not_found
from sessions.model.errors import BadInput, Conflict
from sessions.model.types import SessionKey
from sessions.ports import Member, Owner


class OperatorHandoff:
    """Hands off one replica's sessions on request; implements `actors.peer.server.SessionMover`."""

    def __init__(self, planner: HandoffPlanner) -> None:
        self._planner = planner

    async def move(self, key: SessionKey, to: str) -> Owner:
        """Hands a session off to the replica `to`, or to the one that placement chooses if `to` is "". Returns the new
        owner. Raises NotFound if the session is not in memory here, BadInput for a target that cannot take it, and
        Conflict with the reason if it stays."""
        if self._planner.runtime.actor(key) is None:
            raise not_found(key)
        target = self._target(key, to)
        try:
            return await self._planner.source.hand_off(key, target)
        except HandoffAbandoned as reason:
            raise Conflict("session_stays", f"It stays where it is: {reason}.", retryable=True) from reason

    def _target(self, key: SessionKey, to: str) -> Member:
        if not to:
            chosen = self._planner.choose_target(key)
            if chosen is None:
                raise Conflict("session_stays", "There is no other replica that could take it.", retryable=True)
            return chosen
        for member in self._planner.other_members():
            if member.replica == to:
                if not self._planner.can_take(member):
                    why = f"{to!r} cannot take it: it drains or serves another model."
                    raise BadInput("invalid_request", why, param="to")
                return member
        raise BadInput("invalid_request", f"There is no other replica {to!r}.", param="to")
