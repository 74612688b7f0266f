"""How much KV each tenant holds here, on the device and in every tier, and what goes where that is more than it may.

Only the tenant's own goes, the least valuable first: copies of what lies in a faster tier too, then snapshots by what a
byte of them is expected to save (`Tiers.worth`), parked sessions before others, and last what sessions at rest hold on
the device. Nothing that is being used goes, so a tenant is above its ceiling by what its running answers add, and is
below again when they rest. What cannot fit is not stored: KV is a cache (I6), and costs tokens to compute again.

Counted per engine, as KV is: a tenant whose sessions lie on two replicas may hold as much on each. In Redis only what
this replica knows of is counted. On vLLM's device it is what the front knows of, an upper bound: vLLM evicts untold.

Invariant: without a ceiling nothing is counted and nothing goes. Does not know limits files or engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from inference.kv.cold_tier import ColdSnapshot
from inference.kv.host_tier import HostSnapshot
from inference.kv.index import lowest_ranked
from sessions.model.types import TenantId

if TYPE_CHECKING:
    from inference.kv.tiers import Tiers

Snapshot = HostSnapshot | ColdSnapshot


class TenantKvQuota:
    """One engine's. `tiers` joins by itself; `ceiling`, `resident` and `shed` are set by whoever knows them."""

    def __init__(self) -> None:
        self.tiers: Tiers | None = None
        self.ceiling: Callable[[TenantId], int | None] = lambda tenant: None
        self.resident: Callable[[TenantId], tuple[int, int]] = lambda tenant: (0, 0)
        """Bytes on the device that no snapshot covers, and those of them that `shed` could free."""
        self.shed: Callable[[TenantId], bool] = lambda tenant: False
        """Frees the least valuable of those; False: there is none."""

    def bytes_of(self, tenant: TenantId) -> int:
        below = 0
        if self.tiers is not None:
            below = self.tiers.host.bytes_of(tenant) + sum(tier.bytes_of(tenant) for tier in self.tiers.cold)
        return below + self.resident(tenant)[0]

    def over(self, tenant: TenantId, coming: int = 0) -> int:
        """Bytes above the ceiling, if so many more came; at most 0 where all is well."""
        ceiling = self.ceiling(tenant)
        return 0 if ceiling is None else self.bytes_of(tenant) + coming - ceiling

    async def make_room(self, tenant: TenantId, coming: int) -> bool:
        """Lets go of what is worth least until `coming` bytes fit. False, and nothing has gone, where they cannot."""
        over = self.over(tenant, coming)
        tiers = self.tiers
        if over <= 0 or tiers is None:
            return True
        movable = sum(snapshot.bytes for snapshot in self._idle(tenant)) + self.resident(tenant)[1]
        if coming and over > movable:
            return False
        while self.over(tenant, coming) > 0:
            worst = lowest_ranked(self._idle(tenant), lambda snapshot: _value(tiers, snapshot))
            if worst is not None:
                await tiers.drop(worst)
            elif not self.shed(tenant):
                return False
            tiers.counters["tenant_evictions"] += 1
        return True

    def _of(self, tenant: TenantId) -> Iterator[Snapshot]:
        if self.tiers is None:
            return
        yield from self.tiers.host.of_tenant(tenant)
        for tier in self.tiers.cold:
            yield from tier.of_tenant(tenant)

    def _idle(self, tenant: TenantId) -> Iterator[Snapshot]:
        return (
            snapshot
            for snapshot in self._of(tenant)
            if isinstance(snapshot, ColdSnapshot) or not (snapshot.users or snapshot.moving)
        )


def _value(tiers: Tiers, snapshot: Snapshot) -> tuple[float, ...]:
    """The smaller, the sooner it goes."""
    if isinstance(snapshot, HostSnapshot):
        return (1.0, not snapshot.parked, *tiers.worth(snapshot))
    copied = any(host.tokens == snapshot.tokens for host in tiers.host.of(snapshot.key))
    return (float(not copied), True, *tiers.worth(snapshot))
