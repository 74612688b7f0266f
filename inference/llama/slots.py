"""Maps sessions to slots. A pure table: no I/O, no clock; the engine does what it says.

Invariants (`check_integrity`): a slot has at most one tenant, a busy slot always has one and is never taken away, every
slot is either busy or idle, and whatever `acquire` gave is given back by exactly one `release`.
A session may hold several slots (branches). The table's tokens are what the slot's KV holds at least; the server
compares ids itself before it reuses any.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Iterable, Iterator

from inference.tokens import common_prefix
from sessions.model.types import SessionKey


class Slot:
    """One of the engine's sequences. Mutable, changed by the table and, while busy, by its holder."""

    __slots__ = ("busy", "key", "number", "parked", "saved_tokens", "saving", "scope", "tokens", "used")

    def __init__(self, number: int) -> None:
        self.number = number
        self.key: SessionKey | None = None
        self.tokens: array.array[int] = array.array("I")
        self.busy = False
        self.saving = False  # whether its KV is being saved to host memory
        self.parked = False  # whether its session left memory; then it is evicted first
        self.used = 0  # when it was last released, in the table's own ticks
        self.saved_tokens = 0  # how many leading tokens a snapshot in some tier covers
        self.scope = b""  # the `cache_scope` of its session's latest run

    def is_shared_with(self, key: SessionKey, scope: bytes) -> bool:
        """Returns whether a run of `key` may reuse what the slot holds."""
        if self.key is None:
            return False
        return self.key == key or (scope != b"" and self.key.tenant == key.tenant and self.scope == scope)


Ranking = Callable[[Slot], tuple[float, ...]]


def least_recently_used(slot: Slot) -> tuple[float, ...]:
    """Returns a slot's sort key; the smallest is used first: parked before resident, then longest unused."""
    return (not slot.parked, slot.used)


class SlotTable:
    def __init__(self, num_slots: int, *, ranking: Ranking = least_recently_used) -> None:
        self._slots = [Slot(number) for number in range(num_slots)]
        self._ranking = ranking
        self._ticks = 0

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def of(self, key: SessionKey) -> list[Slot]:
        return [slot for slot in self._slots if slot.key == key]

    @property
    def num_busy(self) -> int:
        return sum(slot.busy for slot in self._slots)

    def has_idle(self) -> bool:
        return any(not slot.busy for slot in self._slots)

    def has_empty(self) -> bool:
        return any(slot.key is None for slot in self._slots)

    def acquire(self, key: SessionKey, prompt: array.array[int], *, beside: bool = False) -> Slot | None:
        """Returns an idle slot for a run of `prompt` and marks it as busy; None if all slots are busy.

        It chooses the session's own slot that shares most of `prompt`, else an empty slot, else the slot whose session
        is ranked lowest. The last one still holds that other session (`slot.key != key`): the caller saves or drops its
        KV and then calls `assign`. With `beside`, if the session's own slot has more that differs from `prompt` than it
        shares, an empty slot is chosen instead, else the session's slot that was used longest ago."""
        idle = [slot for slot in self._slots if not slot.busy]
        if not idle:
            return None
        own = [slot for slot in idle if slot.key == key]
        if own:
            slot = self._best_own(own, prompt)
            if beside and 2 * common_prefix(slot.tokens, prompt) < len(slot.tokens):
                empty = next((slot for slot in idle if slot.key is None), None)
                slot = empty or min(own, key=lambda each: each.used)
        else:
            slot = min(idle, key=self._place_in_line)
        slot.busy = True
        return slot

    def nearest(self, key: SessionKey, scope: bytes, prompt: array.array[int]) -> tuple[Slot | None, int]:
        """Returns the idle slot of another session in the scope that shares most leading tokens with a prompt, and how
        many."""
        best, most = None, 0
        for slot in self._slots:
            if not slot.busy and slot.key != key and slot.is_shared_with(key, scope):
                shared = common_prefix(slot.tokens, prompt)
                if shared > most:
                    best, most = slot, shared
        return best, most

    def order_for_new_session(self) -> list[Slot]:
        """Returns the idle slots, in the order in which sessions that have none would get them."""
        return sorted((slot for slot in self._slots if not slot.busy), key=self._place_in_line)

    def lowest_ranked(self, slots: Iterable[Slot]) -> Slot:
        return min(slots, key=self._ranking)

    def _place_in_line(self, slot: Slot) -> tuple[float, ...]:
        return (slot.key is not None, *self._ranking(slot))

    def _best_own(self, own: list[Slot], prompt: array.array[int]) -> Slot:
        shared = {slot.number: common_prefix(slot.tokens, prompt) for slot in own}
        return max(own, key=lambda slot: (shared[slot.number], slot.used))

    def assign(self, slot: Slot, key: SessionKey, scope: bytes = b"") -> None:
        """Gives the busy slot to session `key`; it must hold no other session's tokens."""
        assert slot.busy
        slot.scope = scope
        if slot.key != key:
            slot.key = key
            slot.tokens = array.array("I")
            slot.saved_tokens = 0
        slot.parked = False

    def release(self, slot: Slot) -> None:
        """Gives a busy slot back. It keeps its session; a slot without tokens keeps none."""
        assert slot.busy
        self._ticks += 1
        slot.busy = False
        slot.used = self._ticks
        if not slot.tokens:
            slot.key = None

    def forget(self, slot: Slot) -> None:
        """Removes the session from the slot. The slot may be busy: then its run goes on, and its KV is not kept."""
        slot.key = None
        slot.tokens = array.array("I")
        slot.saved_tokens = 0

    def check_integrity(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        for slot in self._slots:
            nobodys = slot.key is None and not slot.busy
            assert not (nobodys and slot.tokens), f"slot {slot.number} holds tokens of nobody"
