"""Settles reservations at the end of their responses and summaries, at the replica where those become durable.

So it does not matter whether the gateway that reserved is still there, and after a failover the next owner settles.
Ended responses are queued without waiting and settled by one task in order; while the counts cannot be reached it tries
again until the reservation would have lapsed. Reservations whose end is lost with this process lapse by themselves
(`sessions.limits`).

Bounds: at most `WAITING_MAX` ends wait; beyond them the oldest is dropped, so that its reservation lapses, and counted
(`given_up`). The first of these is logged, and one in every `LOG_EVERY`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import structlog

from sessions.limits import Limiter, LimitsNow
from sessions.model import events as ev
from sessions.model.errors import Unavailable
from sessions.model.types import ResponseId, SessionId, SessionKey
from sessions.ports import Published

WAITING_MAX: Final = 50_000
RETRY_S: Final = 0.5
LOG_EVERY: Final = 1_000

log = structlog.get_logger(__name__)


class _End(NamedTuple):
    """The end of a response or summary, which used `tokens`. `session` is the session whose size the response adds to;
    None for a summary, which changes no session's size."""

    key: SessionKey
    name: ResponseId
    session: SessionId | None
    tokens: int
    since: float


class Settler:
    """Settles the reservations of one replica. `published` is to be called with all records that become durable; `run`
    is to run in a task."""

    def __init__(self, limiter: Limiter, limits: LimitsNow, clock: Callable[[], float]) -> None:
        self._limiter = limiter
        self._limits = limits
        self._clock = clock
        self._ended: deque[_End] = deque()
        self._some = asyncio.Event()
        self.quiet = asyncio.Event()  # set while nothing waits to be settled
        self.quiet.set()
        self.given_up = 0  # reservations that were not settled: they stay charged, and lapse
        self._overflowed = 0

    def published(self, published: Published) -> None:
        for record in published.records:
            if (end := _end_of(published.key, record, self._clock())) is not None:
                self._ended.append(end)
                if len(self._ended) > WAITING_MAX:
                    self._overflow()
                self._some.set()
                self.quiet.clear()

    def _overflow(self) -> None:
        self._ended.popleft()
        self.given_up += 1
        if self._overflowed % LOG_EVERY == 0:
            log.warning("settlement_failed", error="too many wait", waiting=len(self._ended), given_up=self.given_up)
        self._overflowed += 1

    async def run(self) -> None:
        while True:
            await self._some.wait()
            while self._ended:
                key, name, session, tokens, since = self._ended[0]
                try:
                    await self._limiter.settle(key.tenant, name, session, tokens)
                except Unavailable as error:
                    if self._clock() - since < self._limits().reservation_s:
                        await asyncio.sleep(RETRY_S)
                        continue
                    self.given_up += 1
                    log.warning("settlement_failed", session=key.session, response=name, error=error.code)
                if self._ended and self._ended[0][1] == name:
                    self._ended.popleft()
            self._some.clear()
            self.quiet.set()


def _end_of(key: SessionKey, record: ev.Record, now: float) -> _End | None:
    event, private = record.event, record.private
    match event:
        case ev.ResponseCompleted() | ev.ResponseIncomplete() | ev.ResponseFailed():
            return _End(key, event.response_id, key.session, _tokens(event.response.usage or {}), now)
        case ev.ContextCompacted() if event.cause == "command":
            return _End(key, ResponseId(event.summary.id), None, _tokens(event.usage), now)
        case ev.CompactionFailed():
            return _End(key, ResponseId(event.compaction_id), None, private.spent if private is not None else 0, now)
        case _:
            return None


def _tokens(usage: dict[str, Any]) -> int:
    return int(usage.get("input_tokens", 0)) + int(usage.get("output_tokens", 0))
