"""Limits requests while the counts of a cluster cannot be reached, as the limits file sets (`store_lost`).

    local   every process counts by itself, each with `local_share` of the limits (about one over the gateways)
    open    nothing is limited
    closed  no turn begins: `limits_unavailable`

After a failure the store is not tried again for a moment, so that turns do not each wait for its time-out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from actors.limits.memory import MemoryLimiter
from sessions.limits import Demand, Grant, Limiter, LimitsNow, RateLimitStatus
from sessions.model.errors import OutcomeUnknown, Unavailable
from sessions.model.types import ResponseId, SessionId, TenantId

PAUSE_MS: Final = 1_000.0

log = structlog.get_logger(__name__)


class FallbackLimiter:
    """A `Limiter` that uses another one, which may be away. Errors of settling are raised, because its caller tries
    again."""

    def __init__(self, store: Limiter, limits: LimitsNow, clock_ms: Callable[[], float]) -> None:
        self._store = store
        self._limits = limits
        self._clock_ms = clock_ms
        self._local = MemoryLimiter(clock_ms, keep_sizes=True)  # for the time that the store is away
        self._again_at = 0.0
        self.lost = False

    async def reserve(self, demand: Demand) -> Grant:
        if self._clock_ms() >= self._again_at:
            try:
                grant = await self._reserve_or_fail(demand)
            except Unavailable as error:
                self._again_at = self._clock_ms() + PAUSE_MS
                if not self.lost:
                    self.lost = True
                    log.error("limiter_lost", error=error.code, instead=self._limits().store_lost)
            else:
                if self.lost:
                    self.lost = False
                    log.info("limiter_recovered")
                return grant
        limits = self._limits()
        if limits.store_lost == "open":
            return Grant(RateLimitStatus())
        if limits.store_lost == "closed":
            raise Unavailable(
                "limits_unavailable", "Limits cannot be counted at the moment.", retry_after_ms=int(PAUSE_MS)
            )
        return await self._local.reserve(
            msgspec.structs.replace(
                demand,
                tenant_ceilings=demand.tenant_ceilings.scaled(limits.local_share),
                user_ceilings=demand.user_ceilings.scaled(limits.local_share),
            )
        )

    async def _reserve_or_fail(self, demand: Demand) -> Grant:
        try:
            return await self._store.reserve(demand)
        except OutcomeUnknown:
            return await self._store.reserve(demand)  # under the same name: it is charged once

    async def settle(self, tenant: TenantId, name: ResponseId, session: SessionId | None, tokens: int) -> None:
        await self._local.settle(tenant, name, session, tokens)
        await self._store.settle(tenant, name, session, tokens)

    async def release(self, tenant: TenantId, name: ResponseId, *, unasked: bool) -> None:
        await self._local.release(tenant, name, unasked=unasked)
        await self._store.release(tenant, name, unasked=unasked)
