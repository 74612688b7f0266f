"""Passes usage rows on to a stream, at least once each: of those that are there, the oldest number first.

    rows without `relayed_at` ─► sink ─► acknowledged ─► `relayed_at`

A row is marked after the sink has acknowledged it, so a crash in between sends it again: consumers know a row by
(tenant, session, response_id) and keep the first. Nothing is ever skipped: while the sink is away the rows wait in the
journal, and the relay comes back with pauses that grow.

In a cluster every replica runs a relay. Those of one sink take turns (`persistence.usage_stream.relay_lock`), by a lock
that lies beside a stream of Valkey, and for Kafka in the cluster's directory, so that rows come in order and not
several times; a lock that was lost while rows were on their way costs duplicates, no more.

Source: the transactional outbox (Richardson, Microservices Patterns, 2018, ch. 3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec
import structlog

from persistence.usage_stream.kafka import KafkaSink, parse_kafka_address, read_kafka_options
from persistence.usage_stream.relay_lock import ValkeyRelayLock, shield_call
from sessions.billing.metering import UsageEntry, UsageStore, entry_public
from sessions.metrics import Metrics
from sessions.model.errors import BadInput, SessileError, Unavailable
from sessions.model.types import UnixMs

BATCH: Final = 200
POLL_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0
TIMEOUT_S: Final = 10.0

log = structlog.get_logger(__name__)


class UsageSink(Protocol):
    """Where rows go. Raises Unavailable for whatever keeps it from having them."""

    async def acquire(self) -> bool:
        """Takes the turn, or keeps it: False while another relay has it."""
        ...

    async def send(self, rows: Sequence[UsageEntry]) -> None:
        """Returns when every row is acknowledged; some may have been taken when it raises."""
        ...

    async def close(self) -> None: ...


class UsageRelay:
    """Runs until it is cancelled."""

    def __init__(
        self,
        books: UsageStore,
        sink: UsageSink,
        *,
        now_ms: Callable[[], UnixMs],
        measures: Metrics,
        batch: int = BATCH,
        poll_s: float = POLL_S,
    ) -> None:
        self._books = books
        self._sink = sink
        self._now_ms = now_ms
        self._batch = batch
        self._poll_s = poll_s
        self._relayed = measures.counter("usage_rows_relayed", "Usage rows that the stream has acknowledged.")
        self._failed = measures.counter("usage_relay_failures", "Attempts to relay usage rows that failed.")

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
                    log.warning("usage_not_relayed", error=str(error), again_in_s=pause_s)
                    pause_s = min(2 * pause_s, PAUSE_MAX_S)
                await asyncio.sleep(pause_s)
        finally:
            await self._sink.close()

    async def relay_batch(self) -> bool:
        """One batch. True when there may be more at once. Raises Unavailable, OutcomeUnknown."""
        if not await self._sink.acquire():
            return False
        rows = await self._books.unrelayed(limit=self._batch)
        if not rows:
            return False
        await self._sink.send(rows)
        await self._books.mark_relayed([row.seq for row in rows], at=self._now_ms())
        self._relayed.add(by=len(rows))
        return len(rows) == self._batch


class ValkeySink:
    """A stream of Redis or Valkey: each row an entry with the field `row`, a JSON object. Whoever reads it trims it."""

    def __init__(self, url: str, *, stream: str = "sessile:usage") -> None:
        """Connects when it is used. Raises BadInput for a URL that is none."""
        import redis.asyncio as redis

        self._stream = stream
        try:
            self._client: Any = redis.Redis.from_url(
                url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, single_connection_client=False
            )
        except ValueError as error:
            raise BadInput("invalid_setting", f"usage_stream: {error}", param="usage_stream") from error
        self._turns = ValkeyRelayLock(self._client, f"{stream}:relay")
        self._failures: tuple[type[BaseException], ...] = (redis.RedisError, OSError, TimeoutError)

    async def acquire(self) -> bool:
        return await self._turns.acquire()

    async def send(self, rows: Sequence[UsageEntry]) -> None:
        await shield_call(self._send(rows))

    async def _send(self, rows: Sequence[UsageEntry]) -> None:
        try:
            async with self._client.pipeline(transaction=False) as pipeline:
                for row in rows:
                    pipeline.xadd(self._stream, {"row": msgspec.json.encode(entry_public(row))})
                await pipeline.execute()
        except self._failures as error:
            raise Unavailable(
                "usage_stream_away", f"The usage stream {self._stream!r} cannot be written: {error}"
            ) from error

    async def close(self) -> None:
        await self._turns.close()


def open_usage_sink(url: str, *, options: str = "", turns_at: Any = None) -> UsageSink:
    """`redis://…` or `rediss://…` (`?stream=NAME` names the stream), or `kafka://host:9092/TOPIC` with a file of
    `options`. `turns_at`, a client of redis-py, is where several relays to Kafka take turns. Raises BadInput."""
    scheme, _, rest = url.partition("://")
    if scheme == "kafka":
        address = parse_kafka_address(url)
        turns = None if turns_at is None else ValkeyRelayLock(turns_at, f"sessile:usage:relay:{address.topic}")
        return KafkaSink(address, read_kafka_options(options) if options else {}, turns=turns)
    if scheme in ("redis", "rediss", "valkey", "valkeys"):
        if options:
            raise BadInput("invalid_setting", "usage_stream_options: only for kafka://", param="usage_stream_options")
        place, _, query = rest.partition("?stream=")
        return ValkeySink(f"{scheme.replace('valkey', 'redis')}://{place}", **({"stream": query} if query else {}))
    known = "redis://host:6379/0?stream=NAME and kafka://host:9092/TOPIC are known"
    raise BadInput("invalid_setting", f"usage_stream: {known}", param="usage_stream")
