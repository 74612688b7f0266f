"""What a tenant's sessions hold in llama.cpp's slots, for the bound on a tenant's KV (`inference.kv.tenant_quota`).

Tokens that a snapshot covers are counted there and not again. A slot that is busy, or is being saved, stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from inference.kv.tenant_quota import TenantKvQuota
from inference.llama.slot_kv import SlotKv
from inference.llama.slots import Ranking, Slot, SlotTable
from sessions.model.types import TenantId


class SlotUsage:
    def __init__(self, table: SlotTable, residency: SlotKv, ranking: Ranking) -> None:
        self._table = table
        self._residency = residency
        self._ranking = ranking

    def join(self, holdings: TenantKvQuota) -> None:
        holdings.resident, holdings.shed = self.bytes_of, self.shed

    def bytes_of(self, tenant: TenantId) -> tuple[int, int]:
        """All, and those in slots at rest."""
        whole = sum(self._residency.unsaved_bytes(slot) for slot in self._of(tenant))
        return whole, sum(self._residency.unsaved_bytes(slot) for slot in self._resting(tenant))

    def shed(self, tenant: TenantId) -> bool:
        """Forgets the slot at rest that is worth least; False: none holds anything of its own."""
        found = [slot for slot in self._resting(tenant) if self._residency.unsaved_bytes(slot)]
        if not found:
            return False
        self._table.forget(min(found, key=self._ranking))
        return True

    def _of(self, tenant: TenantId) -> Iterator[Slot]:
        return (slot for slot in self._table if slot.key is not None and slot.key.tenant == tenant)

    def _resting(self, tenant: TenantId) -> Iterator[Slot]:
        return (slot for slot in self._of(tenant) if not slot.busy and not self._residency.is_saving(slot))
