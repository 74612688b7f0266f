"""Who gets a slot next: the slot table with a bounded queue in front of it.

Waiting runs are served by priority, then in order of arrival. A slot is handed to a waiter by the release that
frees it, so nobody overtakes; a waiter that was cancelled in that moment gives it back at once.
"""

from __future__ import annotations

import array
import asyncio
import heapq
from typing import NamedTuple

from inference.llama.slots import Slot, SlotTable
from sessions.errors import Overloaded, SessileError
from sessions.types import SessionKey


class _Waiter(NamedTuple):
    """Ordered by the first two fields, which no two share."""

    priority: int
    arrival: int
    key: SessionKey
    prompt: array.array[int]
    future: asyncio.Future[Slot]


class Scheduler:
    def __init__(self, table: SlotTable, waiting_max: int) -> None:
        self.table = table
        self._waiting_max = waiting_max
        self._heap: list[_Waiter] = []
        self._arrivals = 0
        self.num_shed = 0

    @property
    def num_waiting(self) -> int:
        """Counted, not kept: a cancelled task has left the queue before it has run once more to say so."""
        return sum(not waiter.future.done() for waiter in self._heap)

    async def acquire(self, key: SessionKey, prompt: array.array[int], priority: int) -> Slot:
        """A busy slot, chosen by `SlotTable.acquire`. Raises Overloaded when the queue is full."""
        if not self.num_waiting:
            slot = self.table.acquire(key, prompt)
            if slot is not None:
                return slot
        if self.num_waiting >= self._waiting_max:
            self.num_shed += 1
            raise Overloaded("overloaded", "The model is busy. Try again shortly.", retry_after_ms=1000)
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._arrivals += 1
        heapq.heappush(self._heap, _Waiter(priority, self._arrivals, key, prompt, future))
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._heap = [waiter for waiter in self._heap if waiter.future is not future]
                heapq.heapify(self._heap)
            elif future.exception() is None:  # the slot came in the very moment of the cancellation
                self.release(future.result())
            raise

    def try_acquire(self, key: SessionKey, prompt: array.array[int]) -> Slot | None:
        """A slot if one is idle and nobody waits; never queues."""
        return None if self.num_waiting else self.table.acquire(key, prompt)

    def release(self, slot: Slot) -> None:
        self.table.release(slot)
        while self._heap:
            first = self._heap[0]
            if not first.future.done():
                free = self.table.acquire(first.key, first.prompt)
                if free is None:
                    return
                first.future.set_result(free)
            heapq.heappop(self._heap)

    def refuse_all(self, error: SessileError) -> None:
        """Ends everybody's wait with `error`."""
        for waiter in self._heap:
            if not waiter.future.done():
                waiter.future.set_exception(error)
        self._heap.clear()
