"""Keeps a second vLLM started, which takes over when the first one dies.

    begun ─► ready ─► taken ─► another one is begun, a while later
       │       └► dead: another one is begun
       └► it could not start: again, after pauses that grow

It has the model in memory and its device's KV to itself, computes nothing, and costs as much memory as the first. It
knows neither vLLM nor sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

import structlog

log = structlog.get_logger(__name__)

WATCH_S: Final = 0.5
AGAIN_S: Final = (1.0, 10.0, 60.0)  # the pauses before attempts, and the last ever after
REST_S: Final = 5.0  # after a takeover: who waits for a first token needs the machine more


class StandbyCore(Protocol):
    @property
    def is_dead(self) -> bool:
        """Whether its processes have ended by themselves."""

    async def close(self) -> None: ...

    async def reap(self) -> None: ...


C = TypeVar("C", bound=StandbyCore)


class Standby(Generic[C]):
    """Keeps a second engine core started. Call `begin` once, `take` when the first core dies, `close` at the end."""

    def __init__(self, make: Callable[[], C], start: Callable[[C], Awaitable[None]]) -> None:
        """`make` makes a core and `start` starts it; where that raises, another core is tried."""
        self._make = make
        self._start = start
        self._ready: C | None = None
        self._starting = False
        self._changed = asyncio.Event()  # set at each change of the two above
        self._closed = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        return self._ready is not None and not self._ready.is_dead

    def begin(self) -> None:
        self._keeping = asyncio.create_task(self._keep())

    async def take(self) -> C | None:
        """Returns the standby core, which the caller must close later; None if there is none. If one is being started
        it waits for that, because it will be ready sooner than a new one."""
        while self._starting:
            self._changed.clear()
            await self._changed.wait()
        if not self.is_ready:
            return None
        core, self._ready = self._ready, None
        self._changed.set()
        return core

    async def close(self) -> None:
        self._closed.set()
        self._changed.set()
        if self._keeping is not None:
            await asyncio.wait([self._keeping])  # a start of vLLM cannot be broken off
        core, self._ready = self._ready, None
        if core is not None:
            await core.close()

    async def _keep(self) -> None:
        failures = 0
        while not self._closed.is_set():
            core = self._make()
            self._starting = True
            try:
                await self._start(core)
            except Exception:  # whatever a broken vLLM does: there is another attempt
                log.exception("standby_start_failed", engine="vllm")
                pause_s, failures = AGAIN_S[min(failures, len(AGAIN_S) - 1)], failures + 1
                await core.close()
            else:
                self._ready, failures, pause_s = core, 0, REST_S
                log.info("standby_ready", engine="vllm")
            finally:
                self._starting = False
                self._changed.set()
            await self._watch(core)
            await self._closes_within(pause_s)

    async def _watch(self, core: C) -> None:
        """Waits until `core` was taken or has died, or the standby is closed. If it died, cleans up after it."""
        while self._ready is core and not self._closed.is_set():
            if core.is_dead:
                log.error("standby_died", engine="vllm")
                self._ready = None
                await core.reap()
                return
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), WATCH_S)

    async def _closes_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), seconds)
