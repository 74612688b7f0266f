"""Sealed answers in this process: bounded in bytes for each tenant and in all, each for its time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from actors.results.cache import StoredResult
from sessions.model.types import TenantId

ENTRY_OVERHEAD_BYTES = 256  # of what stands beside a body


class _Entry(NamedTuple):
    mark: bytes
    body: bytes
    expires_at: float

    @property
    def size(self) -> int:
        return len(self.body) + ENTRY_OVERHEAD_BYTES


class MemoryResultStore:
    """Implements `ResultStore`; each call is whole. `clock` counts seconds."""

    def __init__(self, bytes_max: int, clock: Callable[[], float]) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._clock = clock
        self._entries: OrderedDict[tuple[TenantId, bytes], _Entry] = OrderedDict()
        self._tenants: dict[TenantId, OrderedDict[bytes, None]] = {}  # each in the same order
        self._bytes_of: dict[TenantId, int] = {}
        self._marked: dict[tuple[TenantId, bytes], set[bytes]] = {}  # names by their mark

    def __len__(self) -> int:
        return len(self._entries)

    def bytes_of(self, tenant: TenantId) -> int:
        return self._bytes_of.get(tenant, 0)

    async def get(self, tenant: TenantId, name: bytes) -> bytes | None:
        entry = self._entries.get((tenant, name))
        if entry is None:
            return None
        if entry.expires_at <= self._clock():
            self._remove(tenant, name)
            return None
        self._entries.move_to_end((tenant, name))
        self._tenants[tenant].move_to_end(name)
        return entry.body

    async def put(self, tenant: TenantId, result: StoredResult, *, ttl_s: int, bytes_max: int) -> None:
        entry = _Entry(result.mark, result.body, self._clock() + ttl_s)
        self._remove(tenant, result.name)
        if entry.size > min(bytes_max, self.bytes_max):
            return
        while self.bytes_of(tenant) + entry.size > bytes_max:
            self._remove(tenant, next(iter(self._tenants[tenant])))
        while self.bytes + entry.size > self.bytes_max:
            self._remove(*next(iter(self._entries)))
        self._entries[tenant, result.name] = entry
        self._tenants.setdefault(tenant, OrderedDict())[result.name] = None
        self._marked.setdefault((tenant, result.mark), set()).add(result.name)
        self._count(tenant, entry.size)

    async def drop(self, tenant: TenantId, mark: bytes | None) -> None:
        names = self._tenants.get(tenant, ()) if mark is None else self._marked.get((tenant, mark), ())
        for name in list(names):
            self._remove(tenant, name)

    async def close(self) -> None:
        self._entries.clear()
        self._tenants.clear()
        self._bytes_of.clear()
        self._marked.clear()
        self.bytes = 0

    def _remove(self, tenant: TenantId, name: bytes) -> None:
        entry = self._entries.pop((tenant, name), None)
        if entry is None:
            return
        del self._tenants[tenant][name]
        if not self._tenants[tenant]:
            del self._tenants[tenant]
        marked = self._marked[tenant, entry.mark]
        marked.discard(name)
        if not marked:
            del self._marked[tenant, entry.mark]
        self._count(tenant, -entry.size)

    def _count(self, tenant: TenantId, size: int) -> None:
        self.bytes += size
        left = self.bytes_of(tenant) + size
        if left:
            self._bytes_of[tenant] = left
        else:
            self._bytes_of.pop(tenant, None)
