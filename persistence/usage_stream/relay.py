"""Relays usage rows to a stream, at least once each, in the order of their numbers.

    rows without `relayed_at` ─► sink ─► acknowledged ─► `relayed_at`

A row is marked after the sink has acknowledged it, so a crash in between sends it again: consumers know a row by
(tenant, session, response_id) and keep the first. Nothing is ever skipped: while the sink is away the rows wait in the
journal, and the relay comes back with pauses that grow.

In a cluster every replica runs a relay, but only the holder of a lock (`relay_lock.py`) works, so that rows come in
order and not several times. The lock is in the Valkey of the stream, or for Kafka in that of the cluster's directory. A
lock that was lost while rows were on their way costs duplicates, no more.

Source: the transactional outbox (Richardson, Microservices Patterns, 2018, ch. 3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from sessions.billing.metering import UsageEntry, UsageStore
from sessions.metrics import Metrics
from sessions.model.errors import SessileError
from sessions.model.types import UnixMs

BATCH: Final = 200
POLL_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0

log = structlog.get_logger(__name__)


class UsageSink(Protocol):
    """The destination of usage rows. Its methods raise Unavailable for whatever keeps it from taking rows."""

    async def acquire(self) -> bool:
        """Takes or keeps the relay lock; returns False if another relay has it."""
        ...

    async def send(self, rows: Sequence[UsageEntry]) -> None:
        """Sends rows; returns when every row is acknowledged. If it raises, some of them may have arrived."""
        ...

    async def close(self) -> None: ...


class UsageRelay:
    """Passes a store's usage rows on to a sink. `run` ends only by cancellation."""

    def __init__(
        self,
        usage: UsageStore,
        sink: UsageSink,
        *,
        now_ms: Callable[[], UnixMs],
        metrics: Metrics,
        batch: int = BATCH,
        poll_s: float = POLL_S,
    ) -> None:
        self._usage = usage
        self._sink = sink
        self._now_ms = now_ms
        self._batch = batch
        self._poll_s = poll_s
        self._relayed = metrics.counter("usage_rows_relayed", "Usage rows that the stream has acknowledged.")
        self._failed = metrics.counter("usage_relay_failures", "Attempts to relay usage rows that failed.")

    async def run(self) -> None:
        pause_s = self._poll_s
        try:
            while True:
                try:
                    more = await self.relay_batch()
                    pause_s = self._poll_s
                    if more:
                        continue
                except SessileError as error:
                    self._failed.add()
                    log.warning("usage_relay_failed", error=str(error), again_in_s=pause_s)
                    pause_s = min(2 * pause_s, PAUSE_MAX_S)
                await asyncio.sleep(pause_s)
        finally:
            await self._sink.close()

    async def relay_batch(self) -> bool:
        """Relays one batch; returns True if more rows may be waiting. Raises Unavailable, OutcomeUnknown."""
        if not await self._sink.acquire():
            return False
        rows = await self._usage.unrelayed(limit=self._batch)
        if not rows:
            return False
        await self._sink.send(rows)
        await self._usage.mark_relayed([row.seq for row in rows], at=self._now_ms())
        self._relayed.add(by=len(rows))
        return len(rows) == self._batch
