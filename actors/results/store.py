"""Stores sealed answers: the port, and the store in this process."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from sessions.model.types import TenantId

ENTRY_OVERHEAD_BYTES: Final = 256  # of an entry, besides its body


class StoredResult(NamedTuple):
    """One sealed answer. `mark` (16 bytes) identifies the session that it came from."""

    name: bytes
    mark: bytes
    body: bytes


class ResultStore(Protocol):
    """Stores sealed answers by tenant. Its methods raise Unavailable, OutcomeUnknown."""

    async def get(self, tenant: TenantId, name: bytes) -> bytes | None: ...

    async def put(self, tenant: TenantId, result: StoredResult, *, ttl_s: int, bytes_max: int) -> None:
        """Stores a result for `ttl_s` seconds. If the tenant's results would take more than `bytes_max`, the least
        recently used are dropped."""
        ...

    async def drop(self, tenant: TenantId, mark: bytes | None) -> None:
        """Drops a tenant's results with this mark; if `mark` is None, all of the tenant's results."""
        ...

    async def close(self) -> None: ...


class MemoryResultStore:
    """A `ResultStore` in memory; each call is atomic. `clock` returns seconds. If all results together exceed
    `bytes_max`, those of the tenant that uses the most are dropped first."""

    def __init__(self, bytes_max: int, clock: Callable[[], float]) -> None:
        self._bytes_max, self._clock = bytes_max, clock
        self._entries = defaultdict[TenantId, OrderedDict[bytes, tuple[StoredResult, float]]](OrderedDict)  # with ends
        self._bytes = Counter[TenantId]()

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    @property
    def size(self) -> int:
        return self._bytes.total()

    async def get(self, tenant: TenantId, name: bytes) -> bytes | None:
        entry = self._entries[tenant].get(name) if tenant in self._entries else None
        if entry is None or entry[1] <= self._clock():
            self._remove(tenant, name)
            return None
        self._entries[tenant].move_to_end(name)
        return entry[0].body

    async def put(self, tenant: TenantId, result: StoredResult, *, ttl_s: int, bytes_max: int) -> None:
        self._remove(tenant, result.name)
        size = _size_of(result)
        if size > min(bytes_max, self._bytes_max):
            return
        while self._bytes[tenant] + size > bytes_max:
            self._remove(tenant, next(iter(self._entries[tenant])))
        while self.size + size > self._bytes_max:
            largest = max(self._bytes, key=self._bytes.__getitem__)
            self._remove(largest, next(iter(self._entries[largest])))
        self._entries[tenant][result.name] = result, self._clock() + ttl_s
        self._bytes[tenant] += size

    async def drop(self, tenant: TenantId, mark: bytes | None) -> None:
        for result, _ in list(self._entries[tenant].values()) if tenant in self._entries else ():
            if mark in (None, result.mark):
                self._remove(tenant, result.name)

    async def close(self) -> None:
        self._entries.clear()
        self._bytes.clear()

    def _remove(self, tenant: TenantId, name: bytes) -> None:
        entry = self._entries[tenant].pop(name, None) if tenant in self._entries else None
        if entry is not None:
            self._bytes[tenant] -= _size_of(entry[0])
            if not self._entries[tenant]:
                del self._entries[tenant], self._bytes[tenant]


def _size_of(result: StoredResult) -> int:
    return len(result.body) + ENTRY_OVERHEAD_BYTES
