"""Counts what llama.cpp's slots hold beyond what snapshots cover, for the bound on a tenant's KV.

Tokens that a snapshot covers are counted there (`inference.kv.tenant_quota`) and not again. A slot that is busy, or is
being saved, stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from inference.kv.catalog import SnapshotCatalog
from inference.llama.slots import Slot, SlotTable
from sessions.model.types import TenantId


class SlotUsage:
    """How much KV the slots hold. Implements `DeviceKv`. `bytes_per_token` is an estimate that each save corrects."""

    def __init__(self, table: SlotTable, catalog: SnapshotCatalog, bytes_per_token: int) -> None:
        self._table = table
        self._catalog = catalog
        self.bytes_per_token = bytes_per_token

    def covered_tokens(self, slot: Slot) -> int:
        """Returns how many leading tokens of a slot an existing snapshot covers."""
        if slot.key is None or not slot.saved_tokens:
            return 0
        return min(slot.saved_tokens, self._catalog.find(slot.key, slot.tokens)[1])

    def unsaved_bytes(self, slot: Slot) -> int:
        """Returns about how many bytes of the slot's KV no snapshot covers."""
        return max(0, len(slot.tokens) - self.covered_tokens(slot)) * self.bytes_per_token

    @property
    def device_bytes(self) -> float:
        """How many bytes of KV all slots hold, estimated; a busy slot counts with what it held when its run began."""
        return float(sum(len(slot.tokens) for slot in self._table) * self.bytes_per_token)

    def bytes_of(self, tenant: TenantId) -> tuple[int, int]:
        """Returns (bytes of a tenant in all slots, bytes in its idle slots), without those that snapshots cover."""
        whole = sum(self.unsaved_bytes(slot) for slot in self._of(tenant))
        return whole, sum(self.unsaved_bytes(slot) for slot in self._resting(tenant))

    def shed(self, tenant: TenantId) -> bool:
        """Empties the tenant's idle slot that is worth least; returns False where none holds unsaved KV."""
        held = [slot for slot in self._resting(tenant) if self.unsaved_bytes(slot)]
        if not held:
            return False
        self._table.forget(self._table.lowest_ranked(held))
        return True

    def _of(self, tenant: TenantId) -> Iterator[Slot]:
        return (slot for slot in self._table if slot.key is not None and slot.key.tenant == tenant)

    def _resting(self, tenant: TenantId) -> Iterator[Slot]:
        return (slot for slot in self._of(tenant) if not slot.busy and not slot.saving)
