"""Restarts vLLM when its processes die: what ran fails, what waits goes on waiting.

    start ─► watched ─► dead ─► begun again, after pauses that grow ─► watched
                          └► not at the first attempt: turns are refused until one succeeds

A death is found by the run that it ends, or within `WATCH_S` by looking. Knows nothing of sessions and their KV.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from inference.concurrency_gate import ConcurrencyGate
from sessions.model.errors import EngineLost, SessileError, Unavailable

log = structlog.get_logger(__name__)

WATCH_S: Final = 0.5
AGAIN_S: Final = (0.0, 1.0, 10.0, 60.0)  # the pauses before attempts, and the last ever after


class VllmSupervisor:
    """Restarts vLLM when it dies. Call `started` after the first start of vLLM, and `close` before the engine closes
    it."""

    def __init__(
        self,
        gate: ConcurrencyGate,
        *,
        is_dead: Callable[[], bool],
        on_death: Callable[[], None],
        restart: Callable[[Callable[[], bool]], Awaitable[None]],
    ) -> None:
        """`on_death` is called as soon as vLLM is found dead. `restart` then closes the dead vLLM and, if the function
        that it is given still returns true, starts vLLM again; if `restart` raises, it is called again later."""
        self.unavailable: SessileError | None = Unavailable("engine_unavailable", "The engine has not started yet.")
        self._gate = gate
        self._is_dead = is_dead
        self._on_death = on_death
        self._restart = restart
        self._closed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None

    @property
    def restarting(self) -> bool:
        """Whether vLLM has died and is not running again yet."""
        return self._restarting is not None and not self._restarting.done()

    @property
    def refusal(self) -> SessileError | None:
        """The error with which turns are refused; None if they are not. While the gate is held, turns wait there
        instead."""
        return None if self._gate.held else self.unavailable

    def check(self) -> None:
        """Raises EngineLost if vLLM has died since the run passed the gate, or the error with which turns are
        refused."""
        if self.unavailable is not None:
            raise self.refusal or EngineLost("engine_lost", "The model's engine has died.")

    def started(self) -> None:
        self.unavailable = None
        self._watching = asyncio.create_task(self._watch())

    def mark_dead(self) -> None:
        """Notes that vLLM is dead, and starts its restart. Idempotent."""
        if self.unavailable is None:
            self.unavailable = Unavailable(
                "engine_unavailable", "The model's engine has died; it is being started again."
            )
            self._gate.hold()
            self._on_death()
            self._restarting = asyncio.create_task(self._restart_until_up(self.unavailable))

    async def restarted(self) -> None:
        """Waits until, after a death, turns are accepted again or the engine is closed."""
        if self._restarting is not None:
            await asyncio.wait([self._restarting])

    async def close(self) -> None:
        self.unavailable = Unavailable("engine_unavailable", "The engine has been closed.")
        self._closed.set()
        self._gate.refuse_all(self.unavailable)
        self._gate.open()  # whoever comes late runs into `check`
        tasks = [task for task in (self._watching, self._restarting) if task is not None]
        if tasks:
            await asyncio.wait(tasks)  # a start of vLLM cannot be broken off

    async def _watch(self) -> None:
        while not await self._closes_within(WATCH_S):
            if self._is_dead():
                self.mark_dead()

    async def _restart_until_up(self, unavailable: SessileError) -> None:
        for pause_s in itertools.chain(AGAIN_S, itertools.repeat(AGAIN_S[-1])):
            await self._closes_within(pause_s)
            try:
                await self._restart(lambda: self.unavailable is unavailable)
            except Exception:  # whatever a broken vLLM does: there is another attempt
                log.exception("engine_restart_failed", engine="vllm")
                self._gate.refuse_all(unavailable)
                self._gate.open()
                continue
            if self.unavailable is unavailable:
                self.unavailable = None
                self._gate.open()
            return

    async def _closes_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), seconds)
        return self._closed.is_set()
