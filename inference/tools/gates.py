"""What every call of a server tool passes, whatever carries it out: room beside other calls, of the tool, of its tenant
and of all, and the breaker of the tenant's calls of the tool.

In a cluster the breaker is shared by all replicas. While it cannot be reached each replica uses its own, which has
noted every outcome too, and the shared one is not tried again for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

import structlog

from inference.tools.breaker import FAILURES_MAX, PAUSE_S, CircuitBreaker, SharedBreakers
from sessions.metrics import Histograms
from sessions.model.errors import Unavailable
from sessions.model.types import TenantId
from sessions.server_tools import ToolRequest, ToolResult

log = structlog.get_logger(__name__)

SHARED_PAUSE_S: Final = 1.0  # after the shared breakers could not be reached
CALLS_MAX: Final = 256  # calls in progress of all tenants
TENANT_CALLS_MAX: Final = 64  # calls in progress of one tenant, so that its hanging tools leave room for others' calls


class _Gate(NamedTuple):
    """The limit on calls, and the circuit breaker, that all calls of one tool by one tenant share."""

    breaker: CircuitBreaker
    room: asyncio.Semaphore


class ToolGates:
    """Limits the calls of tools at one replica. `shared`: the breakers of its cluster."""

    def __init__(self, call_s: Histograms, shared: SharedBreakers | None = None) -> None:
        self._call_s = call_s
        self._shared = shared
        self._shared_again_at = 0.0
        self._room = asyncio.Semaphore(CALLS_MAX)
        self._tenant_rooms: dict[TenantId, asyncio.Semaphore] = {}
        self._gates: dict[tuple[TenantId, str, int], _Gate] = {}

    async def through(
        self, request: ToolRequest, *, concurrency: int, timeout_s: float, work: Callable[[], Awaitable[ToolResult]]
    ) -> ToolResult:
        """Waits for room, runs `work` and returns its result. If there is no room within `timeout_s` seconds, or the
        circuit breaker is open, returns a result that says so, without running `work`."""
        gate, clock = self._gate(request, concurrency), asyncio.get_running_loop().time
        async with AsyncExitStack() as rooms:
            try:
                async with asyncio.timeout(timeout_s):
                    for room in (gate.room, self._tenant_room(request.key.tenant), self._room):
                        await rooms.enter_async_context(room)
            except TimeoutError:
                return not_sent("too many calls are under way")
            begun_at = clock()
            if not await self._permits(request, gate.breaker, begun_at):
                return not_sent("it has failed too often; it is tried again in a while")
            try:
                result = await work()
                await self._record(
                    request, gate.breaker, clock(), success=result.outcome == "done" or not _its_fault(result)
                )
                return result
            finally:
                self._call_s.of(request.name).observe(clock() - begun_at)

    async def _permits(self, request: ToolRequest, breaker: CircuitBreaker, now: float) -> bool:
        if self._shared is not None and now >= self._shared_again_at:
            try:
                return await self._shared.permits(
                    request.key.tenant, request.name, failures_max=FAILURES_MAX, pause_s=PAUSE_S
                )
            except Unavailable as error:
                self._shared_lost(error, now)
        return breaker.permits(now)

    async def _record(self, request: ToolRequest, breaker: CircuitBreaker, now: float, *, success: bool) -> None:
        breaker.record(success=success, now=now)
        if self._shared is not None and now >= self._shared_again_at:
            try:
                await self._shared.record(
                    request.key.tenant, request.name, success=success, failures_max=FAILURES_MAX, pause_s=PAUSE_S
                )
            except Unavailable as error:
                self._shared_lost(error, now)

    def _shared_lost(self, error: Unavailable, now: float) -> None:
        self._shared_again_at = now + SHARED_PAUSE_S
        log.warning("shared_breakers_lost", error=error.code)

    def _tenant_room(self, tenant: TenantId) -> asyncio.Semaphore:
        return self._tenant_rooms.setdefault(tenant, asyncio.Semaphore(TENANT_CALLS_MAX))

    def _gate(self, request: ToolRequest, concurrency: int) -> _Gate:
        name = request.key.tenant, request.name, concurrency
        gate = self._gates.get(name)
        if gate is None:
            gate = self._gates[name] = _Gate(CircuitBreaker(), asyncio.Semaphore(concurrency))
        return gate


def not_sent(why: str) -> ToolResult:
    return ToolResult(outcome="not_sent", output=f"tool_unavailable: {why}.")


def _its_fault(result: ToolResult) -> bool:
    return result.outcome in ("unknown", "not_sent") or result.output.startswith("http_status 5")
