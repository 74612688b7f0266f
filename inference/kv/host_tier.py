"""Snapshots in host memory: a bounded tier whose payloads are files in the staging folder.

It owns the room, the files, and who is using them. Invariants: room is counted before the first byte is written, so the
tier never holds more than its bound; a file that is in use is never removed. Under pressure it evicts by worth, parked
sessions first: to disk where there is one. What moves bytes runs in tasks of its own, so that cancelling a caller never
leaves half a file. It does not know tenants' ceilings, engines, or how a snapshot comes up again.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeVar

import structlog

from inference.kv.disk import DiskTier
from inference.kv.envelope import SnapshotManifest
from inference.kv.index import Blob, IndexedTier, lowest_ranked
from inference.kv.snapshot_worth import SnapshotWorth
from sessions.model.types import SessionKey

log = structlog.get_logger(__name__)
T = TypeVar("T")

_ROOM_WAIT_S: Final = 1.0  # how long saving waits for demotions at least
_ROOM_WAIT_MAX_S: Final = 30.0  # where it is: a disk that stands still holds up nobody for longer
_DEMOTE_AHEAD: Final = 0.8  # above this share of the bound, snapshots move to disk before room is needed


@dataclass(slots=True, eq=False, repr=False)
class HostSnapshot:
    """A snapshot whose payload is a file in the staging folder. Engines get it from the tier and hand it back
    unchanged."""

    tier: ClassVar[Literal["host"]] = "host"
    key: SessionKey
    tokens: array.array[int]
    path: Path
    bytes: int
    manifest: SnapshotManifest | None = None  # None: until it is tagged
    scope: Blob = b""  # the `cache_scope` of the run that it was made by
    used_s: float = 0.0
    parked: bool = False
    users: int = 0  # readers of the file: it is not evicted meanwhile
    moving: bool = False  # whether it is being moved to disk
    forgotten: bool = False  # out of the index: no new reader may begin to use it
    freed: bool = False
    tagging: asyncio.Task[None] | None = None


@dataclass(slots=True, eq=False, repr=False)
class PendingHostSnapshot:
    """A session's snapshot that is being brought into host memory."""

    revoked: bool = False  # the session has been erased meanwhile


class HostTier(IndexedTier[HostSnapshot]):
    """Snapshots in host memory. To add one: `reserve` room, write the file, then `add` the snapshot or `unreserve`."""

    def __init__(self, folder: Path, bytes_max: int, disk: DiskTier | None, worth: SnapshotWorth) -> None:
        """`disk`: the tier for evicted snapshots; None: they are dropped."""
        super().__init__()
        self.bytes_max = bytes_max
        self.bytes = 0  # files, and room that was reserved for one
        self.disk = disk
        self.counters: Counter[str] = Counter()
        self._folder = folder
        self._worth = worth
        self._last_used_s = 0.0
        self._pending: dict[SessionKey, set[PendingHostSnapshot]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._freed = asyncio.Event()  # set whenever room may have become free

    # -- room ------------------------------------------------------------------------------------------

    def new_path(self) -> Path:
        """Returns a new file name in the staging folder; its stem is the snapshot's id."""
        return self._folder / f"{os.urandom(16).hex()}.slot"

    async def reserve(self, size: int, worth_s: float = 0.0) -> bool:
        """Makes room for `size` bytes and counts them as used. Returns False if that is impossible, or takes longer
        than `worth_s`: the seconds that computing the KV again would take."""
        if size > self.bytes_max:
            self.counters["host_too_large"] += 1
            return False
        deadline = asyncio.get_running_loop().time() + max(_ROOM_WAIT_S, min(worth_s, _ROOM_WAIT_MAX_S))
        while self.bytes + size > self.bytes_max:
            self._freed.clear()
            self._evict_one()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._freed.wait()
            except TimeoutError:
                self.counters["host_full"] += 1
                return False
        self.bytes += size
        return True

    def unreserve(self, size: int) -> None:
        self.bytes -= size
        self._freed.set()

    @contextlib.contextmanager
    def pending(self, key: SessionKey) -> Iterator[PendingHostSnapshot]:
        """Registers, for the time of the block, that a snapshot of the session is being brought into host memory, so
        that `revoke` can mark it."""
        pending = PendingHostSnapshot()
        of_session = self._pending.setdefault(key, set())
        of_session.add(pending)
        try:
            yield pending
        finally:
            of_session.remove(pending)
            if not of_session:
                del self._pending[key]

    def revoke(self, key: SessionKey) -> None:
        """Marks a deleted session's snapshots that are being brought in: they must not be added."""
        for pending in self._pending.get(key, ()):
            pending.revoked = True

    # -- snapshots ---------------------------------------------------------------------------------------

    def add(self, snapshot: HostSnapshot, *, reserved: int) -> None:
        """Adds a payload that was written to a path from `new_path`, in room reserved for it. Drops the session's
        snapshots whose tokens it includes."""
        self.bytes += snapshot.bytes - reserved
        self.touch(snapshot)
        covered = [older for older in self.of(snapshot.key) if older.tokens == snapshot.tokens[: len(older.tokens)]]
        self._snapshots.add(snapshot)
        for older in covered:
            self._forget(older)
            if not older.users and not older.moving:  # else whoever uses its file drops it
                self.spawn(self.drop(older))
        self._demote_ahead()

    def touch(self, snapshot: HostSnapshot) -> None:
        self._last_used_s = max(time.monotonic(), self._last_used_s + 1e-6)  # also where the clock is coarse
        snapshot.used_s = self._last_used_s
        snapshot.parked = False

    @contextlib.contextmanager
    def using(self, snapshot: HostSnapshot) -> Iterator[None]:
        """Keeps a snapshot's file while the block reads it."""
        snapshot.users += 1
        try:
            yield
        finally:
            snapshot.users -= 1
            self._freed.set()  # it can be evicted now
            if snapshot.forgotten and not snapshot.users and not snapshot.freed:
                self.spawn(self.drop(snapshot))

    async def drop(self, snapshot: HostSnapshot) -> None:
        self._forget(snapshot)
        if not snapshot.freed:
            snapshot.freed = True
            await asyncio.to_thread(snapshot.path.unlink, missing_ok=True)
            self.unreserve(snapshot.bytes)

    async def close(self, deadline_s: float) -> None:
        """Moves snapshots to disk, the latest used first, beginning none after `deadline_s`; drops the rest."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        await self.settle()
        if self.disk is not None:
            for snapshot in sorted(self, key=lambda s: -s.used_s):
                if loop.time() < deadline:
                    await self.spawn(self._demote(self.disk, snapshot))
        for snapshot in tuple(self):
            await self.drop(snapshot)
        await self.settle()

    # -- tasks -------------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs a task that moves bytes to its end, even if the caller is cancelled."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settle(self) -> None:
        """Waits until no task that moves bytes runs."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    # -- inside ------------------------------------------------------------------------------------------

    def _forget(self, snapshot: HostSnapshot) -> None:
        """Removes the snapshot from the index; its room is free once `drop` has removed the file."""
        if not snapshot.forgotten:
            snapshot.forgotten = True
            self._snapshots.remove(snapshot)

    def _demote_ahead(self) -> None:
        if self.disk is not None and self.bytes > _DEMOTE_AHEAD * self.bytes_max:
            self._evict_one()

    def _evict_one(self) -> None:
        """Starts to move or drop the snapshot that is worth least, unless all are in use."""
        idle = [snapshot for snapshot in self if not snapshot.users]
        if any(snapshot.moving for snapshot in idle):
            return
        victim = lowest_ranked(idle, lambda snapshot: (not snapshot.parked, *self._worth(snapshot)))
        if victim is None:
            return
        self.counters["host_evictions"] += 1
        victim.moving = True
        self.spawn(self.drop(victim) if self.disk is None else self._demote(self.disk, victim))

    async def _demote(self, disk: DiskTier, snapshot: HostSnapshot) -> None:
        """Moves a snapshot to disk, or drops it where it cannot be stored there: room is needed."""
        snapshot.moving = True
        try:
            if snapshot.tagging is not None:
                await snapshot.tagging
            manifest = snapshot.manifest
            if manifest is not None and not snapshot.forgotten and not disk.has(manifest.key, manifest.snapshot_id):
                await disk.put(manifest, snapshot.path)
        except Exception:
            log.exception("snapshot_demotion_failed")
        finally:
            snapshot.moving = False
        if not snapshot.users:
            await self.drop(snapshot)
        self._freed.set()
        self._demote_ahead()
