"""What every call of a server tool passes, whatever carries it out: room beside other calls, of the tool, of its tenant
and of all, and the breaker of the tenant's calls of the tool.

In a cluster there is a breaker that all replicas share, beside each replica's own; a call needs the leave of both. What
fails at one replica alone (a secret that it lacks, a name that it does not resolve) is noted in its own breaker only;
the shared one is told what the tool itself has done. While the shared one cannot be reached, or does not answer in
`SHARED_S`, the replica's own decides, and the shared one is not tried again for a moment.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from inference.tools.breaker import FAILURES_MAX, PAUSE_S, CircuitBreaker, SharedBreakers
from sessions.backoff import Backoff
from sessions.metrics import Histograms
from sessions.model.errors import Unavailable
from sessions.model.types import TenantId
from sessions.server_tools import ToolRequest, ToolResult

log = structlog.get_logger(__name__)

T = TypeVar("T")

SHARED_S: Final = 0.25  # for an answer of the shared breakers
SHARED_PAUSE_S: Final = 1.0  # after the shared breakers could not be reached
FIRST_PAUSE_S: Final = 0.2  # between two attempts of a call
PAUSE_MAX_S: Final = 5.0
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
        self._notes: set[asyncio.Task[None]] = set()  # outcomes on their way to the shared breakers

    async def close(self) -> None:
        """Waits until the outcomes so far are noted, which takes `SHARED_S` at most."""
        await asyncio.gather(*self._notes, return_exceptions=True)

    async def through(
        self, request: ToolRequest, *, concurrency: int, timeout_s: float, work: Callable[[], Awaitable[ToolResult]]
    ) -> ToolResult:
        """Waits for room, runs `work` and returns its result. If there is no room within `timeout_s` seconds, or the
        circuit breaker is open, returns a result that says so, without running `work`."""
        tenant, clock = request.key.tenant, asyncio.get_running_loop().time
        gate = self._gates.setdefault(
            (tenant, request.name, concurrency), _Gate(CircuitBreaker(), asyncio.Semaphore(concurrency))
        )
        tenant_room = self._tenant_rooms.setdefault(tenant, asyncio.Semaphore(TENANT_CALLS_MAX))
        async with AsyncExitStack() as rooms:
            try:
                async with asyncio.timeout(timeout_s):
                    for room in (gate.room, tenant_room, self._room):
                        await rooms.enter_async_context(room)
            except TimeoutError:
                return not_sent("too many calls are under way")
            begun_at = clock()
            if not (gate.breaker.permits(begun_at) and await self._shared_permits(request)):
                return not_sent("it has failed too often; it is tried again in a while")
            try:
                result = await work()
                success, was_sent = result.outcome != "unknown" and not result.is_broken, result.outcome != "not_sent"
                gate.breaker.record(success=success and was_sent, now=clock())
                if was_sent and self._shared is not None:
                    self._note(self._share(request, success=success))
                return result
            finally:
                self._call_s.of(request.name).observe(clock() - begun_at)

    async def _shared_permits(self, request: ToolRequest) -> bool:
        async def permits(shared: SharedBreakers) -> bool:
            return await shared.permits(request.key.tenant, request.name, failures_max=FAILURES_MAX, pause_s=PAUSE_S)

        return await self._ask_shared(permits) is not False

    async def _share(self, request: ToolRequest, *, success: bool) -> None:
        async def record(shared: SharedBreakers) -> None:
            await shared.record(
                request.key.tenant, request.name, success=success, failures_max=FAILURES_MAX, pause_s=PAUSE_S
            )

        await self._ask_shared(record)

    async def _ask_shared(self, ask: Callable[[SharedBreakers], Awaitable[T]]) -> T | None:
        """Returns an answer of the shared breakers; None if there are none, or they do not answer."""
        clock = asyncio.get_running_loop().time
        if self._shared is None or clock() < self._shared_again_at:
            return None
        try:
            async with asyncio.timeout(SHARED_S):
                return await ask(self._shared)
        except (Unavailable, TimeoutError) as error:
            self._shared_again_at = clock() + SHARED_PAUSE_S
            log.warning("shared_breakers_lost", error=error.code if isinstance(error, Unavailable) else "late")
            return None

    def _note(self, work: Coroutine[Any, Any, None]) -> None:
        """Notes an outcome while its result goes on."""
        task = asyncio.create_task(work)
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)


async def retried(attempts: int, once: Callable[[], Awaitable[tuple[ToolResult, bool]]]) -> ToolResult:
    """Sends a call by `once`, up to so many times with growing pauses, until its result is final. Returns the last
    result; without a final one the last with an unknown outcome, if there is one."""
    pauses, doubtful = Backoff(FIRST_PAUSE_S, PAUSE_MAX_S, random.Random()), None
    result = not_sent("it cannot be reached")
    for attempt in range(attempts):
        if attempt:
            await asyncio.sleep(pauses.next_s())
        result, is_final = await once()
        if is_final:
            return result
        doubtful = result if result.outcome == "unknown" else doubtful
    return doubtful or result


def not_sent(reason: str) -> ToolResult:
    return ToolResult(outcome="not_sent", output=f"tool_unavailable: {reason}.")


def unanswered(reason: str) -> ToolResult:
    return ToolResult(outcome="unknown", output=f"(no answer: {reason})")
