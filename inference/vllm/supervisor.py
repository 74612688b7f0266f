"""vLLM's processes die: whoever ran is told, whoever waits goes on waiting, and vLLM is started again.

    start ─► watched ─► dead ─► begun again, after pauses that grow ─► watched
                          └► not at the first attempt: turns are refused until one succeeds

A death is found by the run that it ends, or within `WATCH_S` by looking. Knows nothing of sessions and their KV.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from inference.vllm.concurrency_gate import ConcurrencyGate
from sessions.model.errors import EngineLost, SessileError, Unavailable

log = logging.getLogger(__name__)

WATCH_S: Final = 0.5
AGAIN_S: Final = (0.0, 1.0, 10.0, 60.0)  # the pauses before attempts, and the last ever after


class VllmSupervisor:
    """`started` after the first start, `close` before the engine closes vLLM."""

    def __init__(
        self,
        gate: ConcurrencyGate,
        *,
        is_dead: Callable[[], bool],
        died: Callable[[], None],
        again: Callable[[Callable[[], bool]], Awaitable[None]],
    ) -> None:
        """`died` is told at once; `again` closes what is left and, while what it is given says that it is wanted,
        starts anew: whatever it raises means another attempt."""
        self.gone: SessileError | None = Unavailable("engine_unavailable", "The engine has not started yet.")
        self._gate = gate
        self._is_dead = is_dead
        self._died = died
        self._again = again
        self._closed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._beginning: asyncio.Task[None] | None = None

    @property
    def beginning(self) -> bool:
        """vLLM has died and is not there again."""
        return self._beginning is not None and not self._beginning.done()

    @property
    def refuses(self) -> SessileError | None:
        """What turns are refused with; those that come while the gate is held wait there."""
        return None if self._gate.held else self.gone

    def check(self) -> None:
        """For a run that is past the gate. Raises EngineLost, or what turns are refused with."""
        if self.gone is not None:
            raise self.refuses or EngineLost("engine_lost", "The model's engine has died.")

    def started(self) -> None:
        self.gone = None
        self._watching = asyncio.create_task(self._watch())

    def dead(self) -> None:
        """Idempotent."""
        if self.gone is None:
            self.gone = Unavailable("engine_unavailable", "The model's engine has died; it is being started again.")
            self._gate.hold()
            self._died()
            self._beginning = asyncio.create_task(self._begin(self.gone))

    async def revived(self) -> None:
        """Returns when turns are welcome again after a death, or the engine is closed."""
        if self._beginning is not None:
            await asyncio.wait([self._beginning])

    async def close(self) -> None:
        self.gone = Unavailable("engine_unavailable", "The engine has been closed.")
        self._closed.set()
        self._gate.refuse_all(self.gone)
        self._gate.open()  # whoever comes late runs into `check`
        tasks = [task for task in (self._watching, self._beginning) if task is not None]
        if tasks:
            await asyncio.wait(tasks)  # a start of vLLM cannot be broken off

    async def _watch(self) -> None:
        while not await self._closes_within(WATCH_S):
            if self._is_dead():
                self.dead()

    async def _begin(self, gone: SessileError) -> None:
        for pause_s in itertools.chain(AGAIN_S, itertools.repeat(AGAIN_S[-1])):
            await self._closes_within(pause_s)
            try:
                await self._again(lambda: self.gone is gone)
            except Exception:  # whatever a broken vLLM does: there is another attempt
                log.exception("vLLM could not be started again")
                self._gate.refuse_all(gone)
                self._gate.open()
                continue
            if self.gone is gone:
                self.gone = None
                self._gate.open()
            return

    async def _closes_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), seconds)
        return self._closed.is_set()
