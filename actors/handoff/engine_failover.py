"""Hands open answers off when a replica's engine is lost, while it is being started again.

While the engine is lost the replica announces that nothing new is to come here, and every session with an open answer
is handed off. A session for which there is no other replica waits here, and goes on when the engine is back. Idle
sessions stay, with whatever is kept of their KV.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from actors.handoff.operator_handoff import OperatorHandoff
from actors.handoff.planner import HandoffPlanner
from sessions.model.errors import SessileError
from sessions.model.types import SessionKey

log = structlog.get_logger(__name__)

AGAIN_S: Final = 1.0  # after a check at which nothing could be moved


class EngineFailover:
    """Watches the engine, and moves open answers away while it is lost. `run` ends only by cancellation."""

    def __init__(self, planner: HandoffPlanner, handoff: OperatorHandoff, *, check_s: float = 0.2) -> None:
        self.moved = 0
        self._runtime = planner.runtime
        self._engine = planner.engine
        self._membership = planner.membership
        self._handoff = handoff
        self._check_s = check_s

    async def run(self) -> None:
        lost, pause_s = False, self._check_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s = self._check_s
            if self._runtime.draining:
                continue  # everything leaves anyway (`actors.handoff.drain`)
            why = self._engine.stats().away
            if why is not None and not lost:
                log.warning("engine_lost", reason=why)
            elif why is None and lost:
                log.info("engine_recovered", moved=self.moved)
            if (why is not None) != lost:
                lost = not lost
                self._membership.change(draining=lost)
            if lost:
                before = self.moved
                open_ones = [actor.key for actor in self._runtime.actors if actor.open]
                await asyncio.gather(*(self._move(key) for key in open_ones))
                if open_ones and self.moved == before:
                    pause_s = AGAIN_S

    async def _move(self, key: SessionKey) -> None:
        try:
            await self._handoff.move(key, "")
            self.moved += 1
        except SessileError as error:
            log.debug("handoff_failed", session=key.session, tenant=key.tenant, reason=error.public_message)
