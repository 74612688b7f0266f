"""Limits how many answers run at once: the rest wait by priority, then in order; beyond the queue work is shed.
While the gate is `held` nobody gets in.

The gate stands before vLLM's own scheduler, so that what waits has sent nothing yet and a cancelled waiter leaves
nothing behind. It knows no engine.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Final

from sessions.model.errors import Overloaded, SessileError

_RETRY_AFTER_MS: Final = 1000


class ConcurrencyGate:
    """`acquire` and `release` come in pairs."""

    def __init__(self, slots: int, waiting_max: int) -> None:
        self.slots = slots
        self.waiting_max = waiting_max
        self.running = 0
        self.num_shed = 0
        self.held = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = 0

    @property
    def waiting(self) -> int:
        """Counted, not kept: a cancelled task has left before it has run once more to say so."""
        return sum(not turn.done() for _, _, turn in self._waiting)

    async def acquire(self, priority: int) -> None:
        """Raises Overloaded when the queue is full. Cancelled, it has taken nothing."""
        if self.running < self.slots and not self.waiting and not self.held:
            self.running += 1
            return
        if self.waiting >= self.waiting_max:
            self.num_shed += 1
            raise Overloaded("overloaded", "The model is busy. Try again shortly.", retry_after_ms=_RETRY_AFTER_MS)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals += 1
        entry = (priority, self._arrivals, turn)
        heapq.heappush(self._waiting, entry)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release()  # it was our turn already
            elif entry in self._waiting:
                self._waiting.remove(entry)
                heapq.heapify(self._waiting)
            raise

    def release(self) -> None:
        self.running -= 1
        self._let_in()

    def hold(self) -> None:
        """Those who are in go on; the others wait until `open`."""
        self.held = True

    def open(self) -> None:
        self.held = False
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self.running < self.slots and not self.held:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                self.running += 1
                turn.set_result(None)

    def refuse_all(self, error: SessileError) -> None:
        """Everybody who waits gets the error."""
        waiting, self._waiting = self._waiting, []
        for _, _, turn in waiting:
            if not turn.done():
                turn.set_exception(error)
