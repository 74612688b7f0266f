"""Caches the prefixes that sessions of a tenant share (instructions, tools): computed once, then laid into slots.

llama.cpp reuses whatever prefix a slot's last prompt shares with the next one. Between sessions that would go beyond
the opening, into a person's own words, and its timing would leak; so a slot that changes hands is emptied, and only an
opening that sessions have in common is laid in. Openings never cross tenants.

They are snapshots like those of sessions, under a name that no session can have: bounded, checked at every use,
evicted and moved to disk with them.
"""

from __future__ import annotations

import array
from typing import Final

from inference.llama.slot_kv import SlotKv
from inference.llama.slots import Slot
from inference.shared_prefixes import SharedPrefixes
from sessions.model.types import OPENINGS, SessionKey, TenantId

WORTH_TOKENS: Final = 12  # fewer are computed sooner than laid in; that is for the caller to decide


class PrefixCache:
    """Stores the KV of the instructions and tools with which several sessions of a tenant begin. A slot that is passed
    to it must be held by the caller, so that no other run uses it."""

    def __init__(self, slot_kv: SlotKv) -> None:
        self._slot_kv = slot_kv
        self._shared_prefixes = SharedPrefixes()

    def common(self, key: SessionKey, opening: array.array[int]) -> bool:
        """Notes how a session's prompt begins. Returns whether another session of its tenant began the same way, so
        that the opening is worth storing."""
        return self._shared_prefixes.common(key, opening)

    async def lay(self, slot: Slot, tenant: TenantId, opening: array.array[int]) -> bool:
        """Fills the slot with exactly the KV of `opening`, if that is stored and restoring it is faster than computing.
        Returns whether it did."""
        tiers = self._slot_kv.tiers
        snapshot, shared = tiers.catalog.find(SessionKey(tenant, OPENINGS), opening)
        if snapshot is None or shared < len(opening):
            return False
        choice = tiers.choose(snapshot, 0, shared)
        if not choice.tries or not await self._slot_kv.restore(slot, snapshot, choice):
            return False
        slot.tokens, slot.saved_tokens = opening, 0
        self._slot_kv.counters["openings_laid"] += 1
        return True

    async def keep(self, slot: Slot, key: SessionKey, opening: array.array[int]) -> None:
        """Stores the slot's KV, which is that of `opening` and nothing else, for the tenant's other sessions; not if
        the session is deleted meanwhile."""
        shared = SessionKey(key.tenant, OPENINGS)
        await self._slot_kv.store(slot, shared, opening, lambda: slot.key == key)
