"""Lets requests that change the same thing of a tenant take turns, so that one at a time has it in memory.

A change that reads a whole set, alters it and writes it back costs as much as the set. Requests that do so at once
would each hold a copy, and repeat the work whenever another one was faster. Tenants do not wait for each other.

Invariant: of each tenant one request has its turn, and at most `waiting_max` wait; further ones are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sessions.model.errors import Limited
from sessions.model.types import TenantId

WAITING_MAX: Final = 64
RETRY_MS: Final = 1_000


class TenantTurns:
    """The turns of all tenants at one kind of change, in one process."""

    def __init__(self, waiting_max: int = WAITING_MAX) -> None:
        self._waiting_max = waiting_max
        self._locks: dict[TenantId, asyncio.Lock] = {}
        self._present: dict[TenantId, int] = {}  # requests that have their turn or wait for it

    @asynccontextmanager
    async def turn(self, tenant: TenantId) -> AsyncIterator[None]:
        """Waits for the tenant's earlier requests, and holds up its later ones. Raises Limited if too many wait."""
        present = self._present.get(tenant, 0)
        if present > self._waiting_max:
            raise Limited("rate_limited", "Too many changes of this tenant are under way.", retry_after_ms=RETRY_MS)
        self._present[tenant] = present + 1
        lock = self._locks.setdefault(tenant, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            self._present[tenant] -= 1
            if not self._present[tenant]:
                del self._present[tenant], self._locks[tenant]
