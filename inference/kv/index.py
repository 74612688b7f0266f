"""Indexes the snapshots of one tier by session and by tenant, and finds the one that is worth least.

A tier may hold tens of thousands, and needs this at each write, on the event loop. So what a tenant holds is counted as
it changes, and of many snapshots the least valuable is looked for among a few drawn at random: the worst of `SAMPLE` is
among the worst hundredth with a chance of 92%, and among the worst fiftieth with 99.4% (Psounis and Prabhakar, "A
randomized Web-cache replacement scheme", 2001; so do Redis, and LHD: Beckmann et al., NSDI '18). Of few it is exact.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Any, Final, Generic, Protocol, TypeVar

from sessions.model.types import SessionKey, TenantId

SAMPLE: Final = 256


class Indexed(Protocol):
    """What stands here; it does not change its size."""

    @property
    def key(self) -> SessionKey: ...
    @property
    def bytes(self) -> int: ...


S = TypeVar("S", bound=Indexed)
T = TypeVar("T")


class SnapshotIndex(Generic[S]):
    """Each of its snapshots once."""

    def __init__(self) -> None:
        self._of: dict[SessionKey, list[S]] = {}  # whose first snapshot came longest ago first
        self._tenants: dict[TenantId, dict[S, None]] = {}
        self._bytes: dict[TenantId, int] = {}

    def __iter__(self) -> Iterator[S]:
        return chain.from_iterable(self._tenants.values())

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def __contains__(self, snapshot: S) -> bool:
        return snapshot in self._tenants.get(snapshot.key.tenant, ())

    @property
    def sessions(self) -> Collection[SessionKey]:
        """In the order in which they came here."""
        return self._of.keys()

    def of(self, key: SessionKey) -> list[S]:
        return list(self._of.get(key, ()))

    def of_tenant(self, tenant: TenantId) -> Collection[S]:
        return self._tenants.get(tenant, {}).keys()

    def bytes_of(self, tenant: TenantId) -> int:
        return self._bytes.get(tenant, 0)

    def add(self, snapshot: S) -> None:
        key = snapshot.key
        self._of.setdefault(key, []).append(snapshot)
        self._tenants.setdefault(key.tenant, {})[snapshot] = None
        self._bytes[key.tenant] = self._bytes.get(key.tenant, 0) + snapshot.bytes

    def remove(self, snapshot: S) -> bool:
        """False where it is not here (any more)."""
        if snapshot not in self:
            return False
        key = snapshot.key
        self._of[key].remove(snapshot)
        if not self._of[key]:
            del self._of[key]
        del self._tenants[key.tenant][snapshot]
        self._bytes[key.tenant] -= snapshot.bytes
        if not self._tenants[key.tenant]:
            del self._tenants[key.tenant], self._bytes[key.tenant]
        return True


def lowest_ranked(held: Iterable[T], rank: Callable[[T], Any]) -> T | None:
    """The one that ranks lowest, of many the lowest of a few; None of none."""
    some = list(held)
    if len(some) > SAMPLE:
        some = random.sample(some, SAMPLE)
    return min(some, key=rank, default=None)
