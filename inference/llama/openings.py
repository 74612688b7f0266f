"""What conversations of a tenant begin with alike (instructions, tools): computed once, then laid into slots.

llama.cpp reuses whatever prefix a slot's last prompt shares with the next one. Between sessions that would go beyond
the opening, into what somebody said, and its timing would tell; so a slot that changes hands is emptied, and only the
registered opening is laid in. Openings never cross tenants.

They are snapshots like those of sessions, under a name that no session can have: bounded, checked at every use,
evicted and moved to disk with them.
"""

from __future__ import annotations

import array
from typing import Final

import msgspec

from inference.kv.tiers import SHARED
from inference.llama.http import HttpClient
from inference.llama.residency import Residency
from inference.llama.slots import Slot
from sessions.errors import SessileError
from sessions.types import SessionId, SessionKey, TenantId

WORTH_TOKENS: Final = 12  # fewer are computed sooner than laid in; that is for the caller to decide
_NAME: Final = SessionId(f"{SHARED}openings")


class Openings:
    """The openings of one engine. The caller holds the slot (busy) in `lay`."""

    def __init__(self, http: HttpClient, residency: Residency) -> None:
        self._http = http
        self._residency = residency

    async def lay(self, slot: Slot, tenant: TenantId, opening: array.array[int]) -> tuple[int, int]:
        """Makes the slot begin with `opening`. Returns how many tokens of it the slot holds, all or none, and
        how many of those were not computed just now."""
        name = SessionKey(tenant, _NAME)
        snapshot, shared = self._residency.tiers.find(name, opening)
        if snapshot is not None and shared == len(opening):
            tokens = await self._residency.restore(slot, snapshot)
            if tokens:
                slot.tokens, slot.saved_tokens = opening, 0
                self._residency.counters["openings_laid"] += 1
                return len(opening), len(opening)
        return await self._make(slot, name, opening), 0

    async def _make(self, slot: Slot, name: SessionKey, opening: array.array[int]) -> int:
        """Computes the opening in the slot, which has to be done anyway, and keeps it."""
        body = {"prompt": opening.tolist(), "n_predict": 0, "id_slot": slot.number, "cache_prompt": False}
        try:
            status, _ = await self._http.call("POST", "/completion", msgspec.json.encode(body))
        except SessileError:
            return 0  # the run that follows meets the same trouble and says so
        if status != 200:
            return 0
        slot.tokens, slot.saved_tokens = opening, 0
        await self._residency.store(slot, name, opening, lambda: True)
        return len(opening)
