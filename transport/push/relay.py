"""Sends what the outbox has, each row until it is settled.

    due ─► claimed for CLAIM_MS ─► sent, or of no use any more ─► out
                │                  quiet hours, push service away ─► due later
                └─ this process dies ─► due again when the claim ends

A row goes out after the push service has taken the message: a process that dies in between sends it again, under the
same topic and with the same id, by which the push service and the device keep one. Every replica runs a relay; a row
is claimed in the journal, so that one of them has it at a time.

Addresses are strangers' choice, so no row holds up those of others: each goes by itself as soon as there is room, a
user has a few at a time, a device that did not answer is not asked again for its other sessions before its pause is
over, and whatever goes wrong with a row ends that row alone.

Source: the transactional outbox (Richardson, Microservices Patterns, 2018, ch. 3).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog

from sessions.metrics import Metrics
from sessions.model.errors import Forbidden, SessileError
from sessions.model.push import KEPT_MS, PushDelivery, PushId, PushStore, PushSubscription, kind_of
from sessions.model.types import TenantId, UnixMs
from transport.push.quiet_hours import quiet_until
from transport.push.send_result import PushSender, SendResult

BATCH: Final = 32  # claimed at a time
IN_FLIGHT_MAX: Final = 256  # messages on their way from one relay
OF_ONE_USER_MAX: Final = 16  # of these: as many as a user has devices
PAUSED_MAX: Final = 10_000  # devices whose pauses are remembered
POLL_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0
CLAIM_MS: Final = 60_000
RETRY_MS: Final = 5_000
RETRY_MAX_MS: Final = 3_600_000

log = structlog.get_logger(__name__)


def backoff_ms(row: PushDelivery) -> int:
    """Returns how many ms an unsent row waits before its next try: twice as long each time, up to a limit."""
    return min(RETRY_MS << min(row.attempts - 1, 10), RETRY_MAX_MS)


class PushRelay:
    """Sends the notices in the outbox. `run` does so until it is cancelled."""

    def __init__(self, store: PushStore, sender: PushSender, *, now_ms: Callable[[], UnixMs], metrics: Metrics) -> None:
        self._store = store
        self._sender = sender
        self._now_ms = now_ms
        self._going: set[asyncio.Task[None]] = set()
        self._of_users: Counter[tuple[TenantId, str]] = Counter()  # rows that are on their way
        self._paused: dict[PushId, UnixMs] = {}  # devices that did not answer, until when; the oldest first
        self._sent = metrics.counter("push_sent", "Messages that push services have taken.")
        self._failed = metrics.counter("push_failures", "Attempts to send a push that failed, by why.", "why")
        self._dropped = metrics.counter("push_dropped", "Pushes that will not be sent any more, by why.", "why")

    async def run(self) -> None:
        pause_s = POLL_S
        async with asyncio.TaskGroup() as sending:
            while True:
                going = self._going
                try:
                    more = await self._start_due(sending)
                    pause_s = POLL_S
                except SessileError as error:
                    log.warning("push_relay_failed", error=error.code, again_in_s=pause_s)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_MAX_S)
                    continue
                if len(going) >= IN_FLIGHT_MAX:
                    await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
                elif not more:
                    await asyncio.sleep(pause_s)

    async def relay_batch(self) -> bool:
        """Sends the notices that are due, at most `BATCH`, and waits until each was tried. Returns whether more may be
        due. Raises Unavailable, OutcomeUnknown."""
        async with asyncio.TaskGroup() as sending:
            return await self._start_due(sending)

    async def _start_due(self, sending: asyncio.TaskGroup) -> bool:
        """Claims as many due rows as there is room for, and starts a task for each. Returns whether more rows may be
        due."""
        now, room = self._now_ms(), min(BATCH, IN_FLIGHT_MAX - len(self._going))
        rows = await self._store.claim(now, until=UnixMs(now + CLAIM_MS), limit=room)
        for row in rows:
            task = sending.create_task(self._relay(row))
            self._going.add(task)
            task.add_done_callback(self._going.discard)
        return len(rows) == room

    async def _relay(self, row: PushDelivery) -> None:
        try:
            await self._deliver(row)
        except SessileError as error:  # the row is due again when the claim ends
            log.warning("push_settling_failed", error=error.code)
        except Exception:  # a bug here costs this attempt and spares all other rows
            log.exception("push_delivery_failed", tenant=row.key.tenant, subscription=row.subscription_id)
            self._failed.add("internal")

    async def _deliver(self, row: PushDelivery) -> None:
        now = self._now_ms()
        to = row.subscription
        if to is None or now >= row.at + KEPT_MS:
            self._dropped.add("ended" if to is None else "too_old")
            return await self._store.settle(row)
        quiet_end = quiet_until(to.quiet, now)
        if quiet_end is not None:
            return await self._store.postpone(row, quiet_end)
        whose = (to.tenant, to.user)
        paused_until = self._paused.get(to.id, UnixMs(0))
        if paused_until > now:
            return await self._store.postpone(row, paused_until)
        if self._of_users[whose] >= OF_ONE_USER_MAX:
            return await self._store.postpone(row, UnixMs(now + backoff_ms(row)))
        self._of_users[whose] += 1
        try:
            result = await self._send(row, to, now)
        finally:
            self._of_users[whose] -= 1
            if not self._of_users[whose]:
                del self._of_users[whose]
        await self._settle(row, to, result, now)

    async def _settle(self, row: PushDelivery, to: PushSubscription, result: SendResult, now: UnixMs) -> None:
        match result.outcome:
            case "sent":
                self._sent.add()
                self._paused.pop(to.id, None)
                await self._store.settle(row)
            case "gone":
                self._dropped.add("gone")
                await self._store.unsubscribe(to.tenant, to.user, to.id)
            case "refused":
                self._dropped.add("refused")
                await self._store.settle(row)
            case "later":
                until = UnixMs(now + max(backoff_ms(row), int(result.after_s * 1000)))
                self._pause(to.id, until)
                await self._store.postpone(row, until)

    def _pause(self, device: PushId, until: UnixMs) -> None:
        self._paused.pop(device, None)
        if len(self._paused) >= PAUSED_MAX:
            del self._paused[next(iter(self._paused))]
        self._paused[device] = until

    async def _send(self, row: PushDelivery, to: PushSubscription, now: UnixMs) -> SendResult:
        about = {
            "tenant": row.key.tenant,
            "subscription": row.subscription_id,
            "kind": kind_of(to.target),
            "attempt": row.attempts,
        }
        try:
            result = await self._sender.send(row, to, now)
        except Forbidden:
            self._failed.add("address")
            log.warning("push_address_refused", **about)
            return SendResult("refused")
        except SessileError as error:
            self._failed.add("away")
            log.warning("push_failed", error=error.code, **about)
            return SendResult("later")
        if result.outcome != "sent":
            self._failed.add(result.outcome)
            log.info("push_not_taken", outcome=result.outcome, reason=result.reason, **about)
        return result
