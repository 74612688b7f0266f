"""Bounds how much KV each tenant holds at an engine, on the device and in every tier, and evicts what exceeds that.

Only the tenant's own goes, the least valuable first: copies of what lies in a faster tier too, then snapshots by what a
byte of them is expected to save (`SnapshotWorth`), parked sessions before others, and last what sessions at rest hold
on the device. Nothing that is being used goes, so a tenant is above its ceiling by what its running answers add, and is
below again when they rest. What cannot fit is not stored: KV is a cache (I6), and costs tokens to compute again.

Counted per engine, as KV is: a tenant whose sessions lie on two replicas may hold as much on each. In Redis only what
this replica knows of is counted. On vLLM's device it is what the front knows of, an upper bound: vLLM evicts silently.

Invariant: without a ceiling nothing is counted and nothing goes. Does not know limits files or engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from inference.kv.catalog import Snapshot, SnapshotCatalog
from inference.kv.cold_tier import ColdSnapshot
from inference.kv.host_tier import HostSnapshot
from inference.kv.index import lowest_ranked
from sessions.model.types import TenantId

Ceiling = Callable[[TenantId], int | None]
"""Returns how many bytes of KV a tenant may have at this engine; None: as much as there is room for."""


class KvHoldings:
    """How much KV each tenant has at one engine, and the ceiling on it. Implements `Holdings`; it exists before the
    engine starts and after it ends."""

    def __init__(self, bytes_of: Callable[[TenantId], int]) -> None:
        self.ceiling: Ceiling = lambda tenant: None
        self.bytes_of = bytes_of


class DeviceKv(Protocol):
    """The KV on an engine's device, by tenant. KV that a snapshot covers is not counted."""

    def bytes_of(self, tenant: TenantId) -> tuple[int, int]:
        """Returns (all bytes of a tenant, those of them that `shed` could free)."""
        ...

    def shed(self, tenant: TenantId) -> bool:
        """Frees the least valuable KV of the tenant. Returns False if there is none that can be freed."""
        ...


class TenantKvQuota:
    """Keeps the KV of tenants at one engine below their ceilings."""

    def __init__(self, catalog: SnapshotCatalog, device: DeviceKv, ceiling: Ceiling) -> None:
        self._catalog = catalog
        self._device = device
        self._ceiling = ceiling

    def bytes_of(self, tenant: TenantId) -> int:
        return self._catalog.bytes_of(tenant) + self._device.bytes_of(tenant)[0]

    def over(self, tenant: TenantId, coming: int = 0) -> int:
        """Returns by how many bytes the tenant would exceed its ceiling if `coming` bytes were added; 0 or less if they
        fit."""
        ceiling = self._ceiling(tenant)
        return 0 if ceiling is None else self.bytes_of(tenant) + coming - ceiling

    async def make_room(self, tenant: TenantId, coming: int) -> bool:
        """Evicts the tenant's least valuable KV until `coming` bytes fit below its ceiling. Returns False, without
        evicting anything, if they cannot fit."""
        over = self.over(tenant, coming)
        if over <= 0:
            return True
        movable = sum(snapshot.bytes for snapshot in self._idle(tenant)) + self._device.bytes_of(tenant)[1]
        if coming and over > movable:
            return False
        while self.over(tenant, coming) > 0:
            worst = lowest_ranked(self._idle(tenant), self._value)
            if worst is not None:
                await self._catalog.drop(worst)
            elif not self._device.shed(tenant):
                return False
            self._catalog.host.counters["tenant_evictions"] += 1
        return True

    def _idle(self, tenant: TenantId) -> Iterator[Snapshot]:
        return (
            snapshot
            for snapshot in self._catalog.of_tenant(tenant)
            if isinstance(snapshot, ColdSnapshot) or not (snapshot.users or snapshot.moving)
        )

    def _value(self, snapshot: Snapshot) -> tuple[float, ...]:
        """Returns a snapshot's value: the smallest is evicted first."""
        worth = self._catalog.worth(snapshot)
        if isinstance(snapshot, HostSnapshot):
            return (1.0, not snapshot.parked, *worth)
        copied = any(host.tokens == snapshot.tokens for host in self._catalog.host.of(snapshot.key))
        return (float(not copied), True, *worth)
