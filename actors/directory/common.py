"""What both directories share: partitions, the answer to an announcement, and the stream of activations.

Decides how sessions fall into partitions. The rule is part of the stored format: every process of a cluster
must agree on it, so it hashes with BLAKE2b and never with Python's own seeded `hash`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from hashlib import blake2b
from typing import Final, Protocol

from sessions.model.types import SessionKey
from sessions.ports import Directory, Member, Owner, View

PARTITIONS: Final = 64
LEASE_TTL_S: Final = 6.0

# What `activations` holds for a reader that does not come. Beyond it the oldest are given up: they are hints,
# and a gateway looks at its sessions once per TTL anyway.
UNREAD_MAX: Final = 4096


def session_name(key: SessionKey) -> str:
    """Returns one string for each session. The length in front keeps ("a/b", "c") and ("a", "b/c") apart."""
    return f"{len(key.tenant)}:{key.tenant}/{key.session}"


def partition_of(key: SessionKey) -> int:
    """Returns the partition, 0 ... PARTITIONS-1, that holds everything the directory knows of a session."""
    return blake2b(session_name(key).encode(), digest_size=1).digest()[0] % PARTITIONS


class Announcement(View, frozen=True):
    """The answer to an announcement: the view, and the partitions in which the lease was not alive until now.

    `rejoined` are the partitions in which other replicas have seen no lease of this one for a while: its entries there
    may be lost or taken, so it claims its sessions there again. At the first announcement it is all partitions.

    `vanished`, at the first announcement only, are the members whose leases have ended without being given back, as far
    as the directory remembers them. Each may have died, or lives and could not renew while the directory was away.
    """

    rejoined: frozenset[int] = frozenset()
    vanished: tuple[Member, ...] = ()


class Leases(Directory, Protocol):
    """The port `Directory`, with the methods that only the keeper of a lease (`actors.cluster.membership`) needs."""

    async def announce(self, member: Member) -> Announcement:
        """Announces as in the port. Raises Conflict (`replica_replaced`) if another process has joined as the same
        replica after this one: then this one must stop, because nothing that it claims counts any more."""
        ...

    async def news(self) -> None:
        """Waits until an answer of the directory shows that the view is newer than the one last returned by `announce`
        or `view`, or that the lease is missing. Returns at once if one did so since then. Only one caller may wait."""
        ...


class Activations(AsyncIterator[tuple[SessionKey, Owner]]):
    """The activations that one gateway is notified of, oldest first, for one reader. The iteration ends when the
    directory or the reader closes it.

    It collects from the moment it is made, read or not. Beyond `UNREAD_MAX` the oldest is dropped, and `missed` counts
    those.
    """

    def __init__(self, on_close: Callable[[Activations], None]) -> None:
        self._on_close = on_close
        self._unread: deque[tuple[SessionKey, Owner]] = deque()
        self._wake = asyncio.Event()
        self._closed = False
        self.missed = 0

    def push(self, key: SessionKey, owner: Owner) -> None:
        if self._closed:
            return
        if len(self._unread) >= UNREAD_MAX:
            self._unread.popleft()
            self.missed += 1
        self._unread.append((key, owner))
        self._wake.set()

    def __aiter__(self) -> Activations:
        return self

    async def __anext__(self) -> tuple[SessionKey, Owner]:
        while not self._unread:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._unread.popleft()

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Ends the stream; what was pushed before is still read. Idempotent."""
        if not self._closed:
            self._closed = True
            self._wake.set()
            self._on_close(self)


class Freshness:
    """The newest version of the view that one handle has seen, and whether there is news for the keeper of a lease."""

    def __init__(self) -> None:
        self.seen = 0
        self._handed_out = 0
        self._news = asyncio.Event()

    def record_answer(self, version: int) -> None:
        """Notes that an answer carried this version of the view."""
        self.seen = max(self.seen, version)
        if version > self._handed_out:
            self._news.set()

    def lease_missing(self) -> None:
        self._news.set()

    def record_returned(self, version: int) -> None:
        """Notes that a whole view of this version was returned to the caller."""
        self.seen = max(self.seen, version)
        self._handed_out = max(self._handed_out, version)
        self._news.clear()

    async def news(self) -> None:
        await self._news.wait()
