"""Every snapshot that an engine knows of, in all tiers: looked up by session, by tenant and by tokens.

The host tier stands before the tiers below it, so of two snapshots that cover as much the faster one is used. It moves
nothing by itself.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator, Sequence

from inference.kv.cold_tier import ColdSnapshot, ColdTier
from inference.kv.cost import CostModel
from inference.kv.disk import DiskTier
from inference.kv.envelope import KvIdentity
from inference.kv.eviction_rank import ReturnTracker
from inference.kv.host_tier import HostSnapshot, HostTier
from inference.kv.snapshot_worth import SnapshotWorth
from inference.kv.staging import StagingFolder
from inference.options import KvOptions
from inference.tokens import common_prefix
from sessions.model.generation import KVPlace
from sessions.model.types import SHARED, SessionKey, TenantId
from sessions.ports import Keys

Snapshot = HostSnapshot | ColdSnapshot


class SnapshotCatalog:
    """The snapshots in all tiers of one engine, fastest tier first."""

    def __init__(self, host: HostTier, cold: Sequence[ColdTier], worth: SnapshotWorth) -> None:
        self.host = host
        self.cold = tuple(cold)
        self.worth = worth

    def of(self, key: SessionKey) -> list[Snapshot]:
        return [*self.host.of(key), *(snapshot for tier in self.cold for snapshot in tier.of(key))]

    def of_tenant(self, tenant: TenantId) -> Iterator[Snapshot]:
        """Yields the snapshots of a tenant; to be read before the next `await`."""
        yield from self.host.of_tenant(tenant)
        for tier in self.cold:
            yield from tier.of_tenant(tenant)

    def bytes_of(self, tenant: TenantId) -> int:
        return self.host.bytes_of(tenant) + sum(tier.bytes_of(tenant) for tier in self.cold)

    def find(self, key: SessionKey, prompt: array.array[int]) -> tuple[Snapshot | None, int]:
        """Returns the session's snapshot that shares most leading tokens with `prompt`, and how many tokens it shares;
        (None, 0) if none shares any. If two share as many, the one in host memory is returned."""
        best: Snapshot | None = None
        most = 0
        for snapshot in self.of(key):
            shared = common_prefix(snapshot.tokens, prompt)
            if shared > most:
                best, most = snapshot, shared
        return best, most

    def find_near(self, key: SessionKey, prompt: array.array[int], scope: bytes) -> tuple[Snapshot | None, int]:
        """Returns the session's snapshot that shares most leading tokens with `prompt`, or one of another session of
        the same `scope` that shares more; and how many tokens it shares."""
        best, most = self.find(key, prompt)
        tiers: list[HostTier | ColdTier] = [self.host, *self.cold] if scope else []
        for tier in tiers:
            near, shared = tier.nearest(key.tenant, scope, prompt)
            if shared > most:
                best, most = near, shared
        return best, most

    def longest(self, key: SessionKey) -> Snapshot | None:
        """Returns the session's snapshot with the most tokens."""
        return max(self.of(key), key=lambda snapshot: len(snapshot.tokens), default=None)

    def place(self, key: SessionKey) -> KVPlace:
        best = self.longest(key)
        return KVPlace("none", 0) if best is None else KVPlace(best.tier, len(best.tokens))

    def held_sessions(self) -> set[SessionKey]:
        """Returns the sessions that have a snapshot in some tier, as far as this process knows."""
        tiers = (self.host.sessions, *(tier.sessions for tier in self.cold))
        return {key for sessions in tiers for key in sessions if not key.session.startswith(SHARED)}

    def tier_of(self, snapshot: ColdSnapshot) -> ColdTier:
        return next(tier for tier in self.cold if tier.name == snapshot.tier)

    async def drop(self, snapshot: Snapshot) -> None:
        if isinstance(snapshot, ColdSnapshot):
            await self.tier_of(snapshot).drop(snapshot)
        else:
            await self.host.drop(snapshot)


def make_catalog(
    identity: KvIdentity,
    options: KvOptions,
    staging: StagingFolder,
    keys: Keys | None,
    cost: CostModel,
    clock: Callable[[], float],
) -> SnapshotCatalog:
    """Makes the tiers that the options name, not opened yet. `clock` is monotonic, in seconds."""
    disk, worth = None, SnapshotWorth(ReturnTracker(clock), cost)
    cold: list[ColdTier] = []
    if options.disk_folder is not None:
        disk = DiskTier(options.disk_folder, options.disk_bytes_max, identity, keys, rank=worth)
        cold.append(disk)
    if options.redis_url:
        from inference.kv.redis import RedisTier  # its client is loaded only where it is needed

        cold.append(RedisTier(options.redis_url, options.redis_bytes_max, identity, keys))
    return SnapshotCatalog(
        HostTier(staging.path, staging.bound_bytes(options.host_bytes_max), disk, worth), cold, worth
    )
