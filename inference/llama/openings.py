"""What conversations of a tenant begin with alike (instructions, tools): computed once, then laid into slots.

llama.cpp reuses whatever prefix a slot's last prompt shares with the next one. Between sessions that would go beyond
the opening, into what somebody said, and its timing would tell; so a slot that changes hands is emptied, and only the
registered opening is laid in, from a file of its own in the memory-backed folder. Openings never cross tenants.

Bounded: the least recently used file goes first. A file that does not restore is forgotten: the opening is computed.
"""

from __future__ import annotations

import array
import asyncio
from collections import OrderedDict
from pathlib import Path
from typing import Final

import msgspec

from inference.llama.http import HttpClient
from inference.llama.residency import Residency, Restored, Saved, read_tokens
from inference.llama.slots import Slot
from sessions.errors import SessileError
from sessions.types import TenantId

WORTH_TOKENS: Final = 12  # a shorter opening is computed sooner than laid in
OPENINGS_MAX: Final = 32


class Openings:
    """The openings of one engine. The caller holds the slot (busy) in `lay`."""

    def __init__(self, http: HttpClient, residency: Residency) -> None:
        self._http = http
        self._residency = residency
        self._files: OrderedDict[tuple[TenantId, bytes], Path] = OrderedDict()

    async def lay(self, slot: Slot, tenant: TenantId, opening: array.array[int]) -> int:
        """Makes the slot hold exactly `opening`; returns how many tokens of it the slot holds: all, or none."""
        if len(opening) < WORTH_TOKENS:
            return 0
        name = (tenant, opening.tobytes())
        path = self._files.get(name)
        if path is not None:
            self._files.move_to_end(name)
            restored = await self._residency.command(slot, "restore", path, Restored)
            if restored is not None and restored.n_restored == len(opening):
                slot.tokens, slot.saved_tokens = opening, len(opening)
                return len(opening)
            await self._drop(name)
        return await self._make(slot, name, opening)

    async def _make(self, slot: Slot, name: tuple[TenantId, bytes], opening: array.array[int]) -> int:
        """Computes the opening in the slot, which has to be done anyway, and keeps it in a file."""
        body = {"prompt": opening.tolist(), "n_predict": 0, "id_slot": slot.number, "cache_prompt": False}
        try:
            status, _ = await self._http.call("POST", "/completion", msgspec.json.encode(body))
        except SessileError:
            return 0  # the run that follows meets the same trouble and says so
        if status != 200:
            return 0
        slot.tokens, slot.saved_tokens = opening, len(opening)
        path = self._residency.tiers.new_path()
        saved = await self._residency.command(slot, "save", path, Saved)
        if saved is not None and await asyncio.to_thread(read_tokens, path, saved.n_saved) == opening:
            self._files[name] = path
            while len(self._files) > OPENINGS_MAX:
                await self._drop(next(iter(self._files)))
        else:
            await asyncio.to_thread(path.unlink, missing_ok=True)
        return len(opening)

    async def _drop(self, name: tuple[TenantId, bytes]) -> None:
        path = self._files.pop(name)
        await asyncio.to_thread(path.unlink, missing_ok=True)
