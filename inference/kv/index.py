"""Indexes the snapshots of one tier by session, by tenant and by tokens, and finds the one that is worth least.

A tier may hold tens of thousands, and needs this at each write, on the event loop. So what a tenant holds is counted as
it changes, and of many snapshots the least valuable is looked for among a few drawn at random: the worst of `SAMPLE` is
among the worst hundredth with a chance of 92%, and among the worst fiftieth with 99.4% (Psounis and Prabhakar, "A
randomized Web-cache replacement scheme", 2001; so do Redis, and LHD: Beckmann et al., NSDI '18). Of few it is exact.
"""

from __future__ import annotations

import array
import random
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Any, Final, Generic, Protocol, TypeVar

from inference.tokens import common_prefix
from sessions.model.types import SessionKey, TenantId

SAMPLE: Final = 256


class Indexed(Protocol):
    """A snapshot in an index; its size must not change."""

    @property
    def key(self) -> SessionKey: ...
    @property
    def bytes(self) -> int: ...
    @property
    def tokens(self) -> array.array[int]: ...
    @property
    def scope(self) -> Blob: ...


Blob = bytes  # in classes that have `bytes` of their own
S = TypeVar("S", bound=Indexed)
T = TypeVar("T")


class PrefixIndex(Generic[T]):
    """Finds, of many token sequences, the one that shares most leading tokens with a prompt.

    They are kept in order; the one that shares most stands beside where the prompt itself would. So a look-up compares
    whole sequences, never hashes of them, and takes a time that grows with the logarithm of their number."""

    def __init__(self) -> None:
        self._tokens: list[array.array[int]] = []  # in order; those that are equal in the order in which they came
        self._items: list[T] = []

    def __len__(self) -> int:
        return len(self._items)

    def add(self, tokens: array.array[int], item: T) -> None:
        """Adds an item under its tokens, which must not change while it is here."""
        at = bisect_left(self._tokens, tokens)
        self._tokens.insert(at, tokens)
        self._items.insert(at, item)

    def remove(self, tokens: array.array[int], item: T) -> None:
        """Removes an item. Raises ValueError where it is not here."""
        at = bisect_left(self._tokens, tokens)
        while at < len(self._items) and self._items[at] != item:
            if self._tokens[at] != tokens:
                raise ValueError("not in the index")
            at += 1
        del self._tokens[at], self._items[at]

    def nearest(self, prompt: array.array[int]) -> tuple[T | None, int]:
        """Returns the item that shares most leading tokens with `prompt`, and how many; None where none shares any."""
        best: T | None = None
        most = 0
        at = bisect_left(self._tokens, prompt)
        for neighbour in range(max(0, at - 1), min(at + 1, len(self._items))):
            shared = common_prefix(self._tokens[neighbour], prompt)
            if shared > most:
                best, most = self._items[neighbour], shared
        return best, most


class SnapshotIndex(Generic[S]):
    """The snapshots of one tier, each once, by session, tenant and scope."""

    def __init__(self) -> None:
        self._of: dict[SessionKey, list[S]] = {}  # whose first snapshot came longest ago first
        self._tenants: dict[TenantId, dict[S, None]] = {}
        self._bytes: dict[TenantId, int] = {}
        self._scopes: dict[tuple[TenantId, Blob], PrefixIndex[S]] = {}

    def __iter__(self) -> Iterator[S]:
        return chain.from_iterable(self._tenants.values())

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def __contains__(self, snapshot: S) -> bool:
        return snapshot in self._tenants.get(snapshot.key.tenant, ())

    @property
    def sessions(self) -> Collection[SessionKey]:
        """The sessions in the order in which they came here."""
        return self._of.keys()

    def of(self, key: SessionKey) -> list[S]:
        return list(self._of.get(key, ()))

    def of_tenant(self, tenant: TenantId) -> Collection[S]:
        return self._tenants.get(tenant, {}).keys()

    def bytes_of(self, tenant: TenantId) -> int:
        return self._bytes.get(tenant, 0)

    def nearest(self, tenant: TenantId, scope: Blob, prompt: array.array[int]) -> tuple[S | None, int]:
        """Returns the snapshot of a scope that shares most leading tokens with a prompt, and how many."""
        held = self._scopes.get((tenant, scope)) if scope else None
        return (None, 0) if held is None else held.nearest(prompt)

    def add(self, snapshot: S) -> None:
        key = snapshot.key
        if snapshot.scope:
            self._scopes.setdefault((key.tenant, snapshot.scope), PrefixIndex()).add(snapshot.tokens, snapshot)
        self._of.setdefault(key, []).append(snapshot)
        self._tenants.setdefault(key.tenant, {})[snapshot] = None
        self._bytes[key.tenant] = self._bytes.get(key.tenant, 0) + snapshot.bytes

    def remove(self, snapshot: S) -> bool:
        """Removes a snapshot. Returns False if the index does not have it."""
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
        if snapshot.scope:
            scope = key.tenant, snapshot.scope
            self._scopes[scope].remove(snapshot.tokens, snapshot)
            if not len(self._scopes[scope]):
                del self._scopes[scope]
        return True


class IndexedTier(Generic[S]):
    """A tier that says, without waiting, which of its snapshots this process knows. Its collections are to be read
    before the next `await`."""

    def __init__(self) -> None:
        self._snapshots = SnapshotIndex[S]()

    def __iter__(self) -> Iterator[S]:
        return iter(self._snapshots)

    def __len__(self) -> int:
        return len(self._snapshots)

    @property
    def sessions(self) -> Collection[SessionKey]:
        return self._snapshots.sessions

    def of(self, key: SessionKey) -> list[S]:
        return self._snapshots.of(key)

    def of_tenant(self, tenant: TenantId) -> Collection[S]:
        return self._snapshots.of_tenant(tenant)

    def nearest(self, tenant: TenantId, scope: Blob, prompt: array.array[int]) -> tuple[S | None, int]:
        return self._snapshots.nearest(tenant, scope, prompt)

    def bytes_of(self, tenant: TenantId) -> int:
        return self._snapshots.bytes_of(tenant)


def lowest_ranked(held: Iterable[T], rank: Callable[[T], Any]) -> T | None:
    """Returns the item with the lowest rank, among many items only that of a random sample; None if there are no
    items."""
    some = list(held)
    if len(some) > SAMPLE:
        some = random.sample(some, SAMPLE)
    return min(some, key=rank, default=None)
