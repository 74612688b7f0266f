"""The interface of a tier below host memory: a bounded place for whole snapshots, indexed by session.

    disk.DiskTier         files in a folder of this machine
    redis.RedisTier       small snapshots in Redis or Valkey, seen by every replica
    (a peer replica)      keeps nothing for us: `actors` fetches, the engine's `import_kv` takes in

A tier below never raises for its own troubles: it stores or it does not, and a fetch gives the checked payload or
`SnapshotRefused`. It keeps its own index, counters and bound. Where there is a key store, nothing is stored
unencrypted.
"""

from __future__ import annotations

import array
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

from inference.kv.encryption import StoredHead
from inference.kv.envelope import SnapshotManifest, SnapshotRefused
from inference.kv.index import Indexed
from sessions.model.errors import SessileError
from sessions.model.types import SessionKey, TenantId
from sessions.ports import DataKey, Keys

ColdName = Literal["disk", "redis"]
PIECE_BYTES_MIN: Final = 16 << 10  # the first piece of a read is so small that its pace is known soon
_PIECE_BYTES_MAX: Final = 256 << 10


class ColdSnapshot:
    """A snapshot in a tier below host memory. Engines only pass it back to the tier."""

    __slots__ = ("bytes", "key", "scope", "tier", "tokens", "used_s")

    def __init__(
        self,
        tier: ColdName,
        key: SessionKey,
        tokens: array.array[int],
        size: int,
        used_s: float,
        scope: bytes = b"",
    ) -> None:
        self.tier = tier
        self.key = key
        self.tokens = tokens
        self.bytes = size
        self.used_s = used_s  # on the process's monotonic clock
        self.scope = scope


class Ranked(Indexed, Protocol):
    """The attributes of a snapshot by which it is ranked for eviction."""

    @property
    def tokens(self) -> array.array[int]: ...
    @property
    def used_s(self) -> float: ...


class FetchProgress:
    """How far a fetch has come: the thread that reads reports here, the event loop looks and may stop the read."""

    __slots__ = ("first_bytes", "first_s", "num_bytes", "stopped")

    def __init__(self) -> None:
        self.num_bytes = 0
        self.first_bytes = 0
        self.first_s: float | None = None  # when the first bytes came, on the monotonic clock
        self.stopped = False

    def passed(self, num_bytes: int) -> None:
        """Counts bytes as read. Raises SnapshotRefused if the read was stopped."""
        if self.stopped:
            raise SnapshotRefused("too_slow")
        if self.first_s is None:
            self.first_s, self.first_bytes = time.monotonic(), num_bytes
        self.num_bytes += num_bytes

    @property
    def piece_bytes(self) -> int:
        """How many bytes to read at once: few beside those read so far, so that the measured pace stays accurate."""
        return min(max(PIECE_BYTES_MIN, self.num_bytes // 16), _PIECE_BYTES_MAX)

    def seconds_for(self, num_bytes: int, now_s: float) -> float | None:
        """Returns how many seconds reading so many bytes takes at the pace measured so far, with the piece that is
        being read counted as read; None if nothing was read yet."""
        if self.first_s is None:
            return None
        return num_bytes * (now_s - self.first_s) / (self.num_bytes - self.first_bytes + self.piece_bytes)


Blob = bytes  # in classes that have `bytes` of their own
Rank = Callable[[Ranked], tuple[float, ...]]  # the smaller, the sooner evicted


def least_recently_used(snapshot: Ranked) -> tuple[float, ...]:
    return (snapshot.used_s,)


class ColdTier(Protocol):
    """A tier below host memory. `open` comes first; only `open` raises where the tier's storage cannot be used. What
    is known here of its snapshots is as `IndexedTier` says."""

    name: str
    counters: Counter[str]
    bytes: int
    bytes_max: int

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def discover(self, key: SessionKey) -> None:
        """Finds a session's snapshots that other replicas have stored, where the tier is shared."""
        ...

    @property
    def sessions(self) -> Collection[SessionKey]: ...
    def of(self, key: SessionKey) -> Sequence[ColdSnapshot]: ...
    def of_tenant(self, tenant: TenantId) -> Collection[ColdSnapshot]: ...
    def nearest(self, tenant: TenantId, scope: Blob, prompt: array.array[int]) -> tuple[ColdSnapshot | None, int]: ...
    def bytes_of(self, tenant: TenantId) -> int: ...

    def has(self, key: SessionKey, snapshot_id: Blob) -> bool: ...

    async def put(self, manifest: SnapshotManifest, payload: Path) -> bool:
        """Stores a snapshot whose payload lies in a file. Returns False when that failed. Not to be cancelled."""
        ...

    async def fetch(
        self, snapshot: ColdSnapshot, payload: Path, progress: FetchProgress | None = None
    ) -> SnapshotManifest:
        """Writes the checked payload to a file and returns the manifest. Raises SnapshotRefused; a damaged snapshot has
        been removed then.

        A tier that reads in pieces reports them to `progress`, and raises SnapshotRefused (`too_slow`) once `progress`
        is stopped."""
        ...

    def stream(self, snapshot: ColdSnapshot) -> AsyncGenerator[Blob, None]:
        """Yields the decrypted envelope in chunks of at most 1 MiB; its receiver must check it. Raises as `fetch`
        does."""
        ...

    async def drop(self, snapshot: ColdSnapshot) -> None:
        """Removes a snapshot."""
        ...

    async def erase(self, key: SessionKey) -> None:
        """Removes all snapshots of a session, also those that are being written."""
        ...


async def data_key_for(keys: Keys | None, head: StoredHead | None) -> DataKey | None:
    """Returns the data key of a stored snapshot whose file begins with `head`. Without a key store it returns None, for
    a plain snapshot.

    Raises SnapshotRefused: `not_encrypted` for a plain snapshot where there is a key store, `unknown_key` if its key
    does not exist (any more), `keys_away` if the key store does not answer."""
    if keys is None:
        if head is not None:
            raise SnapshotRefused("unknown_key")
        return None
    if head is None:
        raise SnapshotRefused("not_encrypted")
    try:
        found = await keys.find(head.key, head.key_id)
    except SessileError as exc:
        raise SnapshotRefused("keys_away") from exc
    if found is None:
        raise SnapshotRefused("unknown_key")
    return found
