"""Deadlines of very many connections with one timer.

Ten thousand idle connections would otherwise hold ten thousand timer handles. Deadlines are rounded up to slots; a slot
that has come is emptied and each of its members says when it really is due, which is later where something happened in
between. A member stands in the wheel once, under the slot that it knows as `slot`, and is not held when it was taken.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Final, Protocol

SLOT_S: Final = 0.05


class TimerTarget(Protocol):
    slot: int  # its slot in the wheel; 0 for none

    def due(self) -> float: ...

    def elapsed(self, now: float) -> None:
        """Is called when its deadline has come. Must not raise."""


class TimerWheel:
    """Calls `elapsed` of its members when they are due, at most one slot late. Cheap for very many members."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: dict[int, dict[TimerTarget, None]] = {}
        self._order: list[int] = []  # a heap of the keys of _slots
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = 0

    def put(self, member: TimerTarget) -> None:
        """Adds a member, or moves it to the time that its `due` now returns. Does nothing if the wheel will already
        call it at or before that time."""
        slot = int(member.due() / SLOT_S) + 1
        if member.slot and member.slot <= slot:
            return
        self.take(member)
        member.slot = slot
        waiting = self._slots.get(slot)
        if waiting is None:
            self._slots[slot] = {member: None}
            heapq.heappush(self._order, slot)
            self._arm()
        else:
            waiting[member] = None

    def take(self, member: TimerTarget) -> None:
        """Removes a member. Does nothing if it is not there."""
        if member.slot:
            self._slots.get(member.slot, {}).pop(member, None)
            member.slot = 0

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._slots.clear()
        self._order.clear()

    def _arm(self) -> None:
        if not self._order:
            return
        first = self._order[0]
        if self._timer is not None:
            if self._timer_slot <= first:
                return
            self._timer.cancel()
        self._timer_slot = first
        self._timer = self._loop.call_at(first * SLOT_S, self._turn)

    def _turn(self) -> None:
        self._timer = None
        now = self._loop.time()
        now_slot = int(now / SLOT_S)  # call_at may fire a clock's tick early: then nothing is due yet
        while self._order and self._order[0] <= now_slot:
            slot = heapq.heappop(self._order)
            for member in self._slots.pop(slot):
                if member.slot != slot:
                    continue  # taken out by an earlier one's `elapsed`
                member.slot = 0
                if member.due() <= now:
                    member.elapsed(now)
                else:
                    self.put(member)
        self._arm()
