"""The rules of the directory on plain dictionaries: what the scripts in `lua/` do on a server, in Python.

Pure: no I/O, no clock (every call brings `now` in seconds of one clock), no await, so each call is atomic.
The suite runs it and the scripts side by side and compares every answer.

Rules (DESIGN.md §4):
* A lease is (replica, incarnation, generation, renewed at, TTL). The generation is the number of the view in which it
  joined. Alive means |now - renewed at| < TTL: in both directions, because a clock that went back (another server
  took over) must not keep the dead alive.
* An entry counts while a living lease has its replica, incarnation and generation. So giving a lease back gives every
  session back, and nothing is renewed per session.
* The view's version only grows, over a loss of everything too: every caller brings the highest that it has seen.
* A process that announces itself for the first time takes its replica's place at once. One that had joined before
  and finds a later generation in its place has been replaced, and gets Conflict.
* A lapsed lease is remembered for `GRACE_TTLS` of its TTL, so that a directory that was merely slow does not lose
  the entries of everybody; after that its entries are dropped. Who joins meanwhile is told of its member.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from actors.directory.common import PARTITIONS, Activations, Announcement
from sessions.model.errors import Conflict, Unavailable
from sessions.model.types import ReplicaId, SessionKey
from sessions.ports import Claim, Member, Owner, View

GRACE_TTLS: Final = 10
EVERYWHERE: Final = frozenset(range(PARTITIONS))


def replaced(replica: ReplicaId) -> Conflict:
    return Conflict("replica_replaced", f"Another process has joined as replica {replica!r} since; stop this one.")


def lease_missing(replica: ReplicaId) -> Unavailable:
    return Unavailable("lease_missing", f"The session directory knows no living lease of replica {replica!r}.")


class Lease(msgspec.Struct):
    member: Member
    generation: int
    at: float
    ttl: float

    def alive(self, now: float) -> bool:
        return abs(now - self.at) < self.ttl

    def forgotten(self, now: float) -> bool:
        return abs(now - self.at) >= self.ttl * GRACE_TTLS

    @property
    def holder(self) -> tuple[ReplicaId, str, int]:
        return self.member.replica, self.member.incarnation, self.generation


class DirectoryEntry(msgspec.Struct, frozen=True):
    owner: Owner
    generation: int

    @property
    def holder(self) -> tuple[ReplicaId, str, int]:
        return self.owner.replica, self.owner.incarnation, self.generation


class DirectoryState:
    """The state that all handles of one memory directory share, as a server's would be."""

    def __init__(self) -> None:
        self._clear()
        self._listeners: dict[str, list[Activations]] = {}  # in order of joining, so that a seed replays

    def _clear(self) -> None:
        self.version = 0
        self.announced_version = 0  # version at the last announcement or withdrawal, which answers about sessions carry
        self._leases: dict[ReplicaId, Lease] = {}
        self._visible: set[ReplicaId] = set()  # members in the view of `version`
        self._entries: dict[SessionKey, DirectoryEntry] = {}
        self._held: dict[tuple[ReplicaId, str, int], set[SessionKey]] = {}
        self._interest: dict[SessionKey, dict[str, float]] = {}
        self._interest_ends: deque[tuple[float, SessionKey, str]] = deque()

    def empty(self) -> None:
        """Deletes everything that is stored, as a flush of the server does. Listeners stay, because they are
        connections."""
        self._clear()

    # -- members ------------------------------------------------------------------------------------

    def announce(
        self, member: Member, *, generation: int, seen: int, ttl: float, now: float
    ) -> tuple[Announcement, int]:
        """Joins, or renews the lease. `generation` is what the last call returned (0: never joined), `seen` the highest
        version that the caller has seen. Returns the answer, and the `generation` for the next call."""
        self._prune(seen, now, coming=member.replica)
        joins = generation == 0
        lease = self._leases.get(member.replica)
        same = lease is not None and lease.member.incarnation == member.incarnation
        if lease is not None and not same and 0 < generation <= lease.generation:
            raise replaced(member.replica)
        if lease is not None and same and generation in (0, lease.generation):
            generation = lease.generation
            alive = lease.alive(now)
            changed = member.replica not in self._visible or stable(lease.member) != stable(member)
        else:
            if lease is not None:
                self._drop(lease)
            alive, changed = False, True
        if changed:
            self.version += 1
            generation = generation or self.version
        self._leases[member.replica] = Lease(member, generation, now, ttl)
        self._visible.add(member.replica)
        self.announced_version = self.version
        rejoined, vanished = frozenset() if alive else EVERYWHERE, self._vanished(now) if joins else ()
        return Announcement(self.version, self._view().members, rejoined, vanished), generation

    def _vanished(self, now: float) -> tuple[Member, ...]:
        """Returns the members whose leases ended without being given back, and which are still remembered."""
        return tuple(lease.member for _, lease in sorted(self._leases.items()) if not lease.alive(now))

    def withdraw(self, replica: ReplicaId, incarnation: str, *, now: float) -> None:
        lease = self._leases.get(replica)
        if lease is not None and lease.member.incarnation == incarnation:
            del self._leases[replica]
            self._drop(lease)
            self._visible.discard(replica)
            self.version += 1
        self.announced_version = self.version

    def view(self, *, seen: int, now: float) -> View:
        self._prune(seen, now)
        return self._view()

    def _view(self) -> View:
        return View(self.version, tuple(self._leases[replica].member for replica in sorted(self._visible)))

    def _prune(self, seen: int, now: float, *, coming: ReplicaId | None = None) -> None:
        """Takes lapsed members out of the view and forgets those that lapsed long ago, except one that is `coming`
        back. Raises the view's version above `seen`, the highest that the caller has seen."""
        lapsed = {replica for replica in self._visible if not self._leases[replica].alive(now)}
        self._visible -= lapsed
        if lapsed or seen > self.version:
            self.version = max(self.version, seen) + 1
        for lease in [each for each in self._leases.values() if each.forgotten(now) and each.member.replica != coming]:
            del self._leases[lease.member.replica]
            self._drop(lease)
        while self._interest_ends and self._interest_ends[0][0] <= now:
            _, key, gateway = self._interest_ends.popleft()
            gateways = self._interest.get(key, {})
            if gateways.get(gateway, now) <= now:
                gateways.pop(gateway, None)
            if not gateways:
                self._interest.pop(key, None)

    def _drop(self, lease: Lease) -> None:
        for key in self._held.pop(lease.holder, ()):
            del self._entries[key]

    # -- sessions -----------------------------------------------------------------------------------

    def locate(self, key: SessionKey, *, now: float) -> Owner | None:
        entry = self._entries.get(key)
        return entry.owner if entry is not None and self._counts(entry, now) else None

    def claim(self, key: SessionKey, owner: Owner, *, instead_of: Owner | None, now: float) -> Claim:
        entry = self._entries.get(key)
        if entry is not None and entry.owner not in (owner, instead_of) and self._counts(entry, now):
            return Claim(won=False, owner=entry.owner)
        lease = self._leases.get(owner.replica)
        if lease is None or lease.member.incarnation != owner.incarnation or not lease.alive(now):
            raise lease_missing(owner.replica)
        if entry is not None:
            self._held[entry.holder].discard(key)
        claimed = DirectoryEntry(owner, lease.generation)
        self._entries[key] = claimed
        self._held.setdefault(claimed.holder, set()).add(key)
        return Claim(won=True, owner=owner)

    def release(self, key: SessionKey, owner: Owner) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.owner == owner:
            del self._entries[key]
            self._held[entry.holder].discard(key)

    def _counts(self, entry: DirectoryEntry, now: float) -> bool:
        lease = self._leases.get(entry.owner.replica)
        return lease is not None and lease.holder == entry.holder and lease.alive(now)

    # -- readers ------------------------------------------------------------------------------------

    def watch(self, gateway: str, keys: Sequence[SessionKey], *, ttl: float, now: float) -> None:
        for key in keys:
            self._interest.setdefault(key, {})[gateway] = now + ttl
            self._interest_ends.append((now + ttl, key, gateway))

    def watchers(self, key: SessionKey, *, now: float) -> list[str]:
        return sorted(gateway for gateway, until in self._interest.get(key, {}).items() if until > now)

    def activated(self, key: SessionKey, owner: Owner, *, now: float) -> None:
        for gateway in self.watchers(key, now=now):
            for listener in self._listeners.get(gateway, ()):
                listener.push(key, owner)

    def listen(self, gateway: str) -> Activations:
        def forget(listener: Activations) -> None:
            self._listeners[gateway].remove(listener)
            if not self._listeners[gateway]:
                del self._listeners[gateway]

        listener = Activations(forget)
        self._listeners.setdefault(gateway, []).append(listener)
        return listener

    @property
    def entry_count(self) -> int:
        return len(self._entries)

    @property
    def interest_count(self) -> int:
        return len(self._interest_ends)

    def check_integrity(self) -> None:
        """Raises AssertionError if the indexes disagree. For tests and the simulator."""
        held = {key for keys in self._held.values() for key in keys}
        assert held == set(self._entries), "held index and entries disagree"
        assert all(key in self._held[entry.holder] for key, entry in self._entries.items())
        assert self._visible <= set(self._leases), "a member without a lease"


def stable(member: Member) -> Member:
    """Returns a member without its load. The view gets a new version when this changes; the load changes at each
    announcement."""
    return msgspec.structs.replace(member, load=0.0)
