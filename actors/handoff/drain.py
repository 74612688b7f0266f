"""Drains a replica: every session in memory goes elsewhere, first those that are being read and answered. A drain can
be taken back.

From the first moment on nothing new comes here: the view shows it, and new commands are refused. An open answer is
handed off in mid-answer; in the first half of the time only to a replica that has room for it, because it may also end
here. An idle session with KV is handed off with it; one without KV is simply parked, because every replica is equally
good for it. If there is no other replica, only open answers are waited for. A session that cannot be handed off (no
replica has room, or the target failed again and again) is parked when `drain_s` ends: its log is whole, and another
replica goes on with it as after a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from actors.handoff.planner import HandoffPlanner
from sessions.clock import Clock
from sessions.model.audit import INSTALLATION, Action, Audited, AuditLog
from sessions.model.errors import SessileError, Unavailable
from sessions.model.types import SessionKey

log = structlog.get_logger(__name__)

BY_SIGNAL: Final = "signal"  # SIGTERM
Report = Callable[[int, int, int], None]  # handed off, parked, left


class DrainLimits(msgspec.Struct, frozen=True):
    drain_s: float = 60.0
    attempts: int = 3  # to hand off an idle session
    pause_s: float = 0.2
    report_s: float = 0.5


class Drain:
    """Empties a replica on request; implements `actors.peer.server.Drainer`. A second request waits for the drain that
    runs."""

    def __init__(
        self, planner: HandoffPlanner, clock: Clock, *, limits: DrainLimits | None = None, audit: AuditLog | None = None
    ) -> None:
        """`audit` is where drains are recorded; None: only in the process's own log."""
        self.limits = limits or DrainLimits()
        self.handed_off = 0
        self.parked = 0
        self._planner = planner
        self._runtime = planner.runtime
        self._clock = clock
        self._audit = audit
        self._running: asyncio.Task[None] | None = None
        self._is_last = False  # whether the process ends after it

    async def drain(self, report: Report, *, by: str) -> None:
        """Drains the replica; returns when no session is in memory here. Cancelling this call does not undo the drain.

        `by` names the requester, and an audit row with it is written before anything begins. If that fails the call
        raises Unavailable and nothing begins; only a drain at the end of the process (`BY_SIGNAL`) begins all the same.
        """
        if self._running is None:
            await self._record("replica.draining", by)
        self._is_last |= by == BY_SIGNAL
        if self._running is None:
            self._runtime.draining = True
            self._planner.membership.change(draining=True)
            self._running = asyncio.get_running_loop().create_task(self._empty())
        running = self._running
        while not running.done():
            report(self.handed_off, self.parked, max(1, self._runtime.num_present))
            await asyncio.wait((running,), timeout=self.limits.report_s)
        if running.cancelled() and self._running is not running:
            raise Unavailable("draining", "The drain was taken back: this replica takes sessions again.")
        await running
        report(self.handed_off, self.parked, 0)

    async def undrain(self, *, by: str) -> None:
        """Ends a drain, finished or not: sessions come here again. `by` names the requester, for the audit row that is
        written first. Raises Unavailable if the row cannot be written, or if the process is about to end."""
        if self._is_last:
            raise Unavailable("draining", "This replica is ending: start it again instead.", retryable=False)
        if self._running is None:
            return
        await self._record("replica.undrained", by)
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
        self._runtime.draining = False
        self._planner.membership.change(draining=False)
        log.info("drain_taken_back")

    async def _record(self, action: Action, by: str) -> None:
        if self._audit is None:
            return
        detail = {"replica": str(self._runtime.identity.replica), "by": by}
        row = Audited(action=action, at=self._clock.now_ms(), detail=detail)
        try:
            await self._audit.record(INSTALLATION, [row])
        except SessileError as error:
            if by != BY_SIGNAL:
                raise
            log.warning("drain_audit_failed", error=error.code)

    def close(self) -> None:
        """Stops draining; sessions that are still here stay until the runtime closes. Idempotent."""
        if self._running is not None:
            self._running.cancel()

    async def _empty(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.limits.drain_s
        attempts: dict[SessionKey, int] = {}
        log.info("drain_started", sessions=self._runtime.num_present)
        try:
            async with asyncio.timeout_at(deadline):
                while self._runtime.num_present:
                    before = self.handed_off + self.parked
                    patient = loop.time() < deadline - self.limits.drain_s / 2
                    await asyncio.gather(
                        *(self._drain_session(key, attempts, patient) for key in self._keys_in_drain_order())
                    )
                    if self.handed_off + self.parked == before:
                        await asyncio.sleep(self.limits.pause_s)
        except TimeoutError:
            log.warning("drain_timed_out", left=self._runtime.num_present)
            await asyncio.gather(*(self._park(key) for key in self._keys_in_drain_order()))
        log.info("drain_finished", handed_off=self.handed_off, parked=self.parked)

    def _keys_in_drain_order(self) -> list[SessionKey]:
        """Returns the sessions in memory: open answers before idle sessions, those with readers before others."""
        runtime = self._runtime
        actors = sorted(runtime.actors, key=lambda actor: (not actor.open, not runtime.readers(actor.key)))
        return [actor.key for actor in actors]

    async def _drain_session(self, key: SessionKey, attempts: dict[SessionKey, int], patient: bool) -> None:
        actor = self._runtime.actor(key)
        if actor is None:
            return
        has_kv = self._planner.engine.place(key).tokens > 0
        if not actor.busy and not (has_kv and attempts.get(key, 0) < self.limits.attempts):
            await self._park(key)
            return
        attempts[key] = attempts.get(key, 0) + 1
        target = self._planner.choose_target(key)
        if target is None and not actor.open:
            await self._park(key)  # with no replica to take it: what waits for a tool waits in the log as well
            return
        if target is None or (patient and actor.is_generating and target.load >= 1):
            return
        if self._runtime.actor(key) is actor:
            self.handed_off += await self._planner.try_hand_off(key, target)

    async def _park(self, key: SessionKey) -> None:
        if self._planner.source.leaving(key):
            return  # it may be another's in a moment: looked at again
        await self._runtime.passivate(key)
        self.parked += 1
