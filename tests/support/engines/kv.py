"""Snapshots to test with: a payload of pseudo-random bytes that names its session."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Sequence
from pathlib import Path

from inference.kv.catalog import SnapshotCatalog
from inference.kv.cold_tier import ColdSnapshot, ColdTier, FetchProgress
from inference.kv.cost import CostModel
from inference.kv.disk import DiskTier
from inference.kv.envelope import KvIdentity, SnapshotManifest, encode_header, make_manifest, tag_payload
from inference.kv.eviction_rank import ReturnTracker
from inference.kv.host_tier import HostTier
from inference.kv.snapshot_worth import SnapshotWorth
from inference.kv.tenant_quota import Ceiling, DeviceKv, TenantKvQuota
from inference.kv.tiers import Tiers
from inference.tokens import as_tokens
from sessions.model.types import SessionId, SessionKey, TenantId
from sessions.ports import Keys

IDENTITY = KvIdentity("engine/1", "model-1", "f16", "slots")


def key(session: str, tenant: str = "t") -> SessionKey:
    return SessionKey(TenantId(tenant), SessionId(session))


def payload_of(name: str, size: int) -> bytes:
    return random.Random(name).randbytes(size)


def snapshot(
    who: SessionKey, num_tokens: int, size: int, *, identity: KvIdentity = IDENTITY, salt: str = ""
) -> tuple[SnapshotManifest, bytes]:
    payload = payload_of(f"{who}{salt}", size)
    snapshot_id = hashlib.blake2b(f"{who}{num_tokens}{size}{salt}".encode(), digest_size=16).digest()
    tokens = as_tokens(range(100, 100 + num_tokens))
    return make_manifest(who, identity, tokens, snapshot_id, size, tag_payload(payload, snapshot_id)), payload


def file_of(manifest: SnapshotManifest, payload: bytes) -> bytes:
    return encode_header(manifest) + payload


def write_payload(folder: Path, manifest: SnapshotManifest, payload: bytes) -> Path:
    path = folder / f"{manifest.snapshot_id.hex()}.slot"
    path.write_bytes(payload)
    return path


class EmptyDevice:
    """A device that holds nothing of any tenant."""

    def bytes_of(self, tenant: TenantId) -> tuple[int, int]:
        return 0, 0

    def shed(self, tenant: TenantId) -> bool:
        return False


def make_tiers(
    staging: Path,
    host_bytes_max: int,
    disk: DiskTier | None = None,
    *,
    shared: ColdTier | None = None,
    device: DeviceKv | None = None,
    ceiling: Ceiling = lambda tenant: None,
    returns: ReturnTracker | None = None,
    cost: CostModel | None = None,
) -> Tiers:
    """Tiers as an engine has them, not open yet."""
    worth = SnapshotWorth(returns or ReturnTracker(time.monotonic), cost or CostModel())
    cold: list[ColdTier] = [tier for tier in (disk, shared) if tier is not None]
    catalog = SnapshotCatalog(HostTier(staging, host_bytes_max, disk, worth), cold, worth)
    return Tiers(IDENTITY, catalog, TenantKvQuota(catalog, device or EmptyDevice(), ceiling))


async def spill(
    tiers: Tiers, who: SessionKey, tokens: Sequence[int] = range(10), *, payload: bytes, scope: bytes = b""
) -> bool:
    """Does what an engine does to spill a session. Returns whether there was room."""
    size = len(payload)
    if not await tiers.reserve(size, who.tenant):
        return False
    path = tiers.host.new_path()
    path.write_bytes(payload)
    tiers.adopt(who, as_tokens(tokens), path, size, size, scope)
    return True


class HeldDisk(DiskTier):
    """A disk whose reads wait while `go` is cleared: slow, or hanging for good."""

    def __init__(self, folder: Path, keys: Keys | None = None) -> None:
        super().__init__(folder, 1 << 30, IDENTITY, keys)
        self.go, self.asked = asyncio.Event(), asyncio.Event()
        self.go.set()

    async def fetch(
        self, snapshot: ColdSnapshot, payload: Path, progress: FetchProgress | None = None
    ) -> SnapshotManifest:
        self.asked.set()
        await self.go.wait()
        return await super().fetch(snapshot, payload, progress)
