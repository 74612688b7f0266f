"""Saves idle slots before another session needs them, so that it does not wait for the save.

A session that gets another one's slot waits for that one's KV to be saved; and a save waits for the end of a step and
then holds up every stream that decodes. So while there are streams, only the slot that a new session would get next is
kept saved (`SlotTable.order_for_new_session`). The others follow when they are next, or when nobody is held up and host
memory has room without evicting anybody. That is done while there are more live sessions than slots. Apart from it, a
session that rests is saved where there is a tier that outlives the process.

Knows nothing of turns, and not how a save is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inference.llama.slot_kv import SlotKv
from inference.llama.slots import Slot, SlotTable


class EagerSaver:
    """Saves slots before their room is needed. Call `look` when a slot was filled for a run or given back, `rest` for
    one given back, `close` once."""

    def __init__(
        self, table: SlotTable, slot_kv: SlotKv, *, num_waiting: Callable[[], int], save_idle_s: float
    ) -> None:
        self._table = table
        self._slot_kv = slot_kv
        self._num_waiting = num_waiting
        self._save_idle_s = save_idle_s
        self._task: asyncio.Task[None] | None = None
        self._failed: dict[Slot, int] = {}  # slots whose save failed, and their `used` then: retried after another use
        self._closed = False

    def look(self) -> None:
        """Starts a task that saves the slots worth saving, one after the other, unless that task runs already."""
        if (self._task is None or self._task.done()) and self._next() is not None:
            self._task = asyncio.create_task(self._save(), name="saves ahead")

    def rest(self, slot: Slot) -> None:
        """Saves the session of a slot some time after the slot was given back, if there is a tier that outlives this
        process."""
        if self._slot_kv.tiers.cold:
            asyncio.get_running_loop().call_later(self._save_idle_s, self._rested, slot, slot.used)

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            await asyncio.wait([self._task])

    def _rested(self, slot: Slot, used: int) -> None:
        if self._closed or slot.busy or slot.used != used:
            return
        if self._table.num_busy:
            self.rest(slot)
        elif self._slot_kv.is_worth_saving(slot):
            self._slot_kv.begin_save(slot)

    async def _save(self) -> None:
        while (slot := self._next()) is not None:
            used = slot.used
            await self._slot_kv.begin_save(slot)
            if slot.used == used and not slot.busy and self._slot_kv.is_worth_saving(slot):
                self._failed[slot] = used

    def _next(self) -> Slot | None:
        if self._closed or not self._has_more_sessions_than_slots():
            return None
        line = self._table.order_for_new_session()
        if self._table.num_busy or not self._slot_kv.has_room_for_more():
            line = line[:1]
        return next(
            (s for s in line if self._failed.get(s) != s.used and self._slot_kv.is_worth_saving(s)),
            None,
        )

    def _has_more_sessions_than_slots(self) -> bool:
        """Returns whether some live sessions have no slot, so that their KV is in host memory."""
        if self._table.has_empty():
            return False
        return self._num_waiting() > 0 or self._slot_kv.has_evictable({slot.key for slot in self._table})
