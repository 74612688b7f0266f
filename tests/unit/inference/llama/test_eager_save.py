"""Which idle slot is saved ahead, and when."""

from __future__ import annotations

import array
import asyncio
from collections.abc import Set
from types import SimpleNamespace
from typing import Any, cast

from inference.llama.eager_save import EagerSaver
from inference.llama.slot_kv import SlotKv
from inference.llama.slots import Slot, SlotTable
from sessions.model.types import SessionId, SessionKey, TenantId


def key(name: str) -> SessionKey:
    return SessionKey(TenantId("t"), SessionId(name))


class Saves:
    """A residency whose saves wait for `gate` and write down their order; `broken` ones change nothing."""

    def __init__(self, *, others: bool = True) -> None:
        self.tiers = SimpleNamespace(cold=())
        self.saved: list[str] = []
        self.broken: set[str] = set()
        self.others = others
        self.room = True
        self.gate = asyncio.Event()
        self.gate.set()

    def is_worth_saving(self, slot: Slot) -> bool:
        return slot.key is not None and len(slot.tokens) > slot.saved_tokens

    def has_evictable(self, resident: Set[SessionKey | None]) -> bool:
        return self.others

    def has_room_for_more(self) -> bool:
        return self.room

    def begin_save(self, slot: Slot) -> asyncio.Task[None]:
        async def save() -> None:
            await self.gate.wait()
            assert slot.key is not None
            self.saved.append(slot.key.session)
            if slot.key.session not in self.broken:
                slot.saved_tokens = len(slot.tokens)

        return asyncio.create_task(save())


def four_busy(saves: Saves) -> tuple[SlotTable, list[Slot], EagerSaver]:
    table = SlotTable(4)
    slots = []
    for name in "abcd":
        slot = table.acquire(key(name), array.array("I"))
        assert slot is not None
        table.assign(slot, key(name))
        slot.tokens = array.array("I", range(100))
        slots.append(slot)
    ahead = EagerSaver(table, cast(SlotKv, cast(Any, saves)), num_waiting=lambda: 0, save_idle_s=60.0)
    return table, slots, ahead


async def settled(ahead: EagerSaver) -> None:
    if ahead._task is not None:
        await ahead._task


async def test_beside_streams_only_the_next_in_line_is_kept_saved_and_the_rest_when_nobody_is_held_up() -> None:
    saves = Saves()
    table, slots, ahead = four_busy(saves)
    for slot in slots[:3]:
        table.release(slot)
        ahead.look()
        await settled(ahead)
    assert saves.saved == ["a"]
    taken = table.acquire(key("e"), array.array("I"))
    assert taken is slots[0], "who comes next finds it saved"
    ahead.look()
    await settled(ahead)
    assert saves.saved == ["a", "b"], "and then the next one in line is"
    for slot in (slots[0], slots[3]):
        table.release(slot)
    ahead.look()
    await settled(ahead)
    assert saves.saved == ["a", "b", "c", "d"]
