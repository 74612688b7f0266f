"""A replica whose engine has gone away, and is being started again: its open answers go on where there is one.

While the engine is away the view says that nothing new is to come here, and every session with an open answer is handed
off. What finds no other replica waits here, and goes on when the engine is back; idle sessions stay, and with them
whatever is kept of their KV.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from actors.cluster.membership import Membership
from actors.handoff.operator_handoff import OperatorHandoff
from actors.hosting.runtime import Runtime
from sessions.model.errors import SessileError
from sessions.model.types import SessionKey
from sessions.ports import Engine

log = structlog.get_logger(__name__)

AGAIN_S: Final = 1.0  # after a look at which nobody could be moved


class EngineFailover:
    """`run` ends only by cancellation."""

    def __init__(
        self, runtime: Runtime, engine: Engine, membership: Membership, moving: OperatorHandoff, *, look_s: float = 0.2
    ) -> None:
        self.moved = 0
        self._runtime = runtime
        self._engine = engine
        self._membership = membership
        self._moving = moving
        self._look_s = look_s

    async def run(self) -> None:
        away, pause_s = False, self._look_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s = self._look_s
            if self._runtime.draining:
                continue  # everything leaves anyway (`actors.handoff.drain`)
            why = self._engine.stats().away
            if why is not None and not away:
                log.warning("engine_away", reason=why)
            elif why is None and away:
                log.info("engine_back", moved=self.moved)
            if (why is not None) != away:
                away = not away
                self._membership.change(draining=away)
            if away:
                before = self.moved
                open_ones = [actor.key for actor in self._runtime.actors if actor.open]
                await asyncio.gather(*(self._move(key) for key in open_ones))
                if open_ones and self.moved == before:
                    pause_s = AGAIN_S

    async def _move(self, key: SessionKey) -> None:
        try:
            await self._moving.move(key, "")
            self.moved += 1
        except SessileError as error:
            log.debug("not_moved", session=key.session, tenant=key.tenant, reason=error.public_message)
