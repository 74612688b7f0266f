"""Informs the engine when one session's next turn is near, so that KV which made room for others is back before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from sessions.actor.actor_context import ActorContext
from sessions.actor.weak_calls import WeakCall
from sessions.machine.state import State
from sessions.model.types import ResponseId
from sessions.turn.ledger import Ledger
from sessions.turn.past_texts import name_of

log = structlog.get_logger(__name__)


class KvHints:
    """Informs the engine when one session's next turn is near. A hint may fail or come too late: the turn itself
    computes what is missing."""

    def __init__(self, state: State, ledger: Ledger, context: ActorContext, is_warm: Callable[[], bool]) -> None:
        """`is_warm` returns whether the actor serves its session, and is not leaving."""
        self._state = state
        self._ledger = ledger
        self._context = context
        self._is_warm = WeakCall(is_warm)
        self._warming = False
        self._timer: asyncio.TimerHandle | None = None  # before tools' outputs are there

    def turn_expected(self) -> None:
        """Restores or computes the session's KV, because a client has announced a turn, or a tool's output is on its
        way."""
        if self._state.awaiting:
            self._restore()
        else:
            self._warm()

    def tools_called(self, response_id: ResponseId) -> None:
        """Lets the engine use the memory of the session's KV for others while the tools that `response_id` called are
        running, and plans when to restore the KV."""
        waiting = self._state.awaiting.get(response_id)
        if waiting is None or not self._is_warm():
            return
        names = [name for call_id in waiting.missing if (name := name_of(self._state, call_id, waiting.last))]
        after_s = self._context.engine.tools_called(self._state.key, names)
        self.cancel()
        if after_s is not None:
            self._timer = asyncio.get_running_loop().call_later(after_s, self._restore)

    def cancel(self) -> None:
        """Cancels the restore that `tools_called` has planned, because the turn has come, or the session leaves."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _restore(self) -> None:
        """Brings the session's KV back to the device unless it is there already."""
        if self._context.engine.place(self._state.key).tier != "device":
            self._warm()

    def _warm(self) -> None:
        if not self._warming:
            self._warming = True
            self._context.spawn(self._warm_newest())

    async def _warm_newest(self) -> None:
        """Computes the newest branch's KV, unless an open answer does so already."""
        try:
            admission = self._context.limits.admission
            if admission is not None and not admission.gives_extras:
                return
            if self._is_warm() and not self._state.open:
                await self._context.engine.warm(self._state.key, await self._ledger.whole(self._state.newest))
        except Exception:  # whatever an engine does: the turn itself reports it
            log.exception("warming_failed", session=self._state.key.session)
        finally:
            self._warming = False
