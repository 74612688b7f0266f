"""What of a session's KV is off the device: host memory first, then the tiers below. One object per engine.

    device --save--> host (a file in the staging folder) --demote--> disk (an encrypted file)
           <-restore-                                    <-promote-
                                                          --copy---> Redis, where snapshots are small
                                                         <-import--- a peer replica, over the link between them

It decides where a snapshot lies and when it moves down or goes. Invariants: the host tier never holds more than its
bound (an engine that writes more than it announced is cut back at once), a snapshot is tagged before anything trusts it
and checked against its tags each time it is used, and `erase` leaves nothing of a session in any tier, whatever was on
its way at the time.

A session may have several snapshots (branches); one that another covers is dropped. What is saved is copied down soon
after (write-behind), so a process that is killed loses little. Order of eviction: parked sessions, then by expected
return (`retention.py`) times what a return would save (`cost.py`), per byte. It does not know engines, nor when saving
is worth it. What moves bytes runs in tasks of its own: cancelling a caller never leaves half a file.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from inference.kv import transfer
from inference.kv.cold_tier import ColdSnapshot, ColdTier, Ranked
from inference.kv.cost import CostModel, RestoreChoice
from inference.kv.disk import DiskTier
from inference.kv.envelope import KvIdentity, SnapshotManifest, SnapshotRefused, check_file, make_manifest, tag_file
from inference.kv.eviction_rank import ReturnTracker
from inference.kv.host_tier import HostSnapshot, PendingHostSnapshot
from inference.kv.index import SnapshotIndex, lowest_ranked
from inference.kv.promotion import Promotions
from inference.kv.tenant_quota import TenantKvQuota
from inference.tokens import common_prefix
from sessions.model.generation import KVExport, KVPlace
from sessions.model.types import OPENINGS, SHARED, SessionKey, TenantId

if TYPE_CHECKING:
    from inference.kv.redis import RedisTier  # its client is not loaded where nobody wants it

__all__ = ["ColdSnapshot", "HostSnapshot", "Tiers"]

log = logging.getLogger(__name__)
T = TypeVar("T")

_OPENING_IDLE_S: Final = 30 * 86_400.0  # what no session of its tenant has begun with for so long goes
_ROOM_WAIT_S: Final = 1.0  # how long a save may wait for demotions before it is given up
_DEMOTE_AHEAD: Final = 0.8  # above this share of the bound, snapshots move to disk before room is wanted


class Tiers:
    """`open` first; `close` moves what it can to disk. Everything else may be called at any time between."""

    def __init__(
        self,
        identity: KvIdentity,
        folder: Path,
        host_bytes_max: int,
        disk: DiskTier | None,
        *,
        shared: RedisTier | None = None,
        returns: ReturnTracker | None = None,
        cost: CostModel | None = None,
        holdings: TenantKvQuota | None = None,
    ) -> None:
        self.identity = identity
        self.folder = folder
        self.host_bytes_max = host_bytes_max
        self.host_bytes = 0  # files, and room that was reserved for one
        self.disk = disk
        self.shared = shared
        self.cold: tuple[ColdTier, ...] = tuple(tier for tier in (disk, shared) if tier is not None)
        self.returns = returns or ReturnTracker(time.monotonic)
        self.cost = cost or CostModel()
        self.counters: Counter[str] = Counter()
        self.holdings = holdings or TenantKvQuota()
        self.holdings.tiers = self
        self.host = SnapshotIndex[HostSnapshot]()
        self._last_used_s = 0.0
        self._promotions = Promotions(self)
        self._flights: dict[SessionKey, set[PendingHostSnapshot]] = {}
        if disk is not None:
            disk.rank = self.worth
        self._tasks: set[asyncio.Task[Any]] = set()
        self._copying = asyncio.Semaphore(1)
        self._freed = asyncio.Event()  # set whenever host memory may have become free

    async def open(self) -> None:
        """Raises BadInput or Unavailable when a tier cannot be used."""
        for tier in self.cold:
            await tier.open()

    async def close(self, deadline_s: float) -> None:
        """Moves host snapshots to disk, the latest used first, beginning none after `deadline_s`; drops the rest."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        await self._settle()
        if self.disk is not None:
            for snapshot in sorted(self.host, key=lambda s: -s.used_s):
                if loop.time() < deadline:
                    await self.spawn(self._demote(snapshot))
        for snapshot in tuple(self.host):
            await self.drop(snapshot)
        await self._settle()
        for tier in self.cold:
            await tier.close()

    # -- finding -------------------------------------------------------------------------------------

    async def look(self, key: SessionKey, prompt: array.array[int] | None = None) -> None:
        """Asks the shared tier what other replicas have left of a session, once for each run; not where all of `prompt`
        is known here."""
        if self.shared is not None and (prompt is None or self.find(key, prompt)[1] < len(prompt)):
            await self.shared.look(key)

    def find(self, key: SessionKey, prompt: array.array[int]) -> tuple[HostSnapshot | ColdSnapshot | None, int]:
        """The snapshot that shares most leading tokens with `prompt`, and how many; host before disk."""
        best: HostSnapshot | ColdSnapshot | None = None
        most = 0
        for snapshot in self._of(key):
            shared = common_prefix(snapshot.tokens, prompt)
            if shared > most:
                best, most = snapshot, shared
        return best, most

    def place(self, key: SessionKey) -> KVPlace:
        best = max(self._of(key), key=lambda snapshot: len(snapshot.tokens), default=None)
        if best is None:
            return KVPlace("none", 0)
        return KVPlace(best.tier, len(best.tokens))

    def held_sessions(self) -> set[SessionKey]:
        """Those that have a snapshot in some tier, as far as is known here."""
        tiers = (self.host.sessions, *(tier.sessions for tier in self.cold))
        return {key for sessions in tiers for key in sessions if not key.session.startswith(SHARED)}

    def choose(
        self, snapshot: HostSnapshot | ColdSnapshot, begin: int, end: int, *, needed_bytes: int | None = None
    ) -> RestoreChoice:
        """Whether to restore a snapshot for tokens [begin, end) of a prompt, and how long that may take.

        `needed_bytes`: what the engine takes of a snapshot that is in host memory, where that is not all of it."""
        if isinstance(snapshot, HostSnapshot):
            size = snapshot.bytes if needed_bytes is None else needed_bytes
            return self.cost.choose(("device",), size, begin, end, time.monotonic())
        return self.cost.choose((snapshot.tier, "device"), snapshot.bytes, begin, end, time.monotonic())

    def turn(self, key: SessionKey, num_tokens: int) -> None:
        """A turn of a session begins: what eviction learns from."""
        self.returns.turn(key, num_tokens)

    # -- into host memory ------------------------------------------------------------------------------

    def new_path(self) -> Path:
        """A name in the staging folder that nothing has; its stem is the snapshot's id."""
        return self.folder / f"{os.urandom(16).hex()}.slot"

    async def reserve(self, size: int, tenant: TenantId | None = None, *, grows: int | None = None) -> bool:
        """Makes room for `size` bytes in host memory. False when that is impossible or takes too long.

        With a `tenant`, room below its ceiling too, for as much as what it holds `grows` (None: all of it).
        On True the bytes are counted: `adopt` or `unreserve` comes next."""
        if size > self.host_bytes_max:
            self.counters["host_too_large"] += 1
            return False
        if tenant is not None and not await self.holdings.make_room(tenant, size if grows is None else grows):
            self.counters["tenant_full"] += 1
            return False
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _ROOM_WAIT_S
        while self.host_bytes + size > self.host_bytes_max:
            self._freed.clear()
            self._evict_one()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._freed.wait()
            except TimeoutError:
                self.counters["host_full"] += 1
                return False
        self.host_bytes += size
        return True

    def unreserve(self, size: int) -> None:
        self.host_bytes -= size
        self._freed.set()

    def adopt(self, key: SessionKey, tokens: array.array[int], path: Path, size: int, reserved: int) -> None:
        """Takes over the payload that an engine wrote to a `new_path`, in room that was reserved."""
        self.host_bytes += size - reserved
        snapshot = HostSnapshot(key, tokens, path, size)
        self._insert(snapshot)
        snapshot.tagging = self.spawn(self._tag(snapshot))
        if self.host_bytes > self.host_bytes_max:
            self.counters["host_overrun"] += 1
            self.spawn(self.drop(snapshot))

    # -- out of it -------------------------------------------------------------------------------------

    async def prefetch(self, key: SessionKey) -> None:
        """Begins to bring the session's KV into host memory."""
        await self.look(key)
        best = max(self._of(key), key=lambda snapshot: len(snapshot.tokens), default=None)
        if isinstance(best, ColdSnapshot):
            self.counters["prefetches"] += best not in self._promotions
            self._promotions.begin(best)

    @contextlib.asynccontextmanager
    async def payload(
        self, snapshot: HostSnapshot | ColdSnapshot, choice: RestoreChoice | None = None
    ) -> AsyncIterator[HostSnapshot]:
        """The checked payload as a file in the staging folder, for as long as the context lasts.

        Raises Refused; then the snapshot has been dropped and counted, or was not worth waiting for (see `held`)."""
        async with self.held(snapshot, choice) as host:
            if host is snapshot:  # else it was checked on its way up
                await self._check(host)
            yield host

    @contextlib.asynccontextmanager
    async def held(
        self, snapshot: HostSnapshot | ColdSnapshot, choice: RestoreChoice | None = None
    ) -> AsyncIterator[HostSnapshot]:
        """The payload as a file, not evicted for as long as the context lasts, with its manifest.

        For a reader that checks what it reads itself and says `refuse` where that failed. Raises Refused; `too_late`
        when a tier below takes longer than the choice's deadline: then it goes on, and the next turn finds it in host
        memory; `too_slow` when its first bytes show that computing is faster: then the read ends."""
        host = await self._promotions.wait(snapshot, choice) if isinstance(snapshot, ColdSnapshot) else snapshot
        host.users += 1
        try:
            if host.tagging is not None:
                await asyncio.shield(host.tagging)
            if host.gone or host.manifest is None:
                raise SnapshotRefused("no_snapshot")
            self._touch(host)
            yield host
        finally:
            self._leave(host)

    async def refuse(self, snapshot: HostSnapshot, reason: str) -> None:
        """Drops a snapshot that a reader found to be no good."""
        self.counters[f"refused_{reason}"] += 1
        log.warning("saved KV refused (%s), it will be recomputed", reason)
        await self.drop(snapshot)

    def park(self, key: SessionKey) -> None:
        """Its snapshots go first when room is wanted."""
        for snapshot in self.host.of(key):
            snapshot.parked = True

    async def erase(self, key: SessionKey) -> None:
        """Removes everything of a session from every tier."""
        self.returns.forget(key)
        for flight in self._flights.get(key, ()):
            flight.revoked = True
        await asyncio.gather(
            *(self.drop(snapshot) for snapshot in self.host.of(key)),
            *(tier.erase(key) for tier in self.cold),
        )

    # -- between replicas ------------------------------------------------------------------------------

    async def export(self, key: SessionKey, ledger: array.array[int]) -> KVExport | None:
        """The snapshot that covers most of `ledger` in the envelope, in chunks of at most 1 MiB; None without one.

        Where it proves to be no good, it is dropped and the chunks end: whoever takes them in refuses what is not
        whole."""
        best, _ = self.find(key, ledger)
        return None if best is None else KVExport(best.tokens, self._exported(best))

    async def _exported(self, snapshot: HostSnapshot | ColdSnapshot) -> AsyncGenerator[bytes, None]:
        try:
            if isinstance(snapshot, ColdSnapshot):
                async with contextlib.aclosing(self.tier_of(snapshot).stream(snapshot)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                return
            async with self.payload(snapshot) as host:
                assert host.manifest is not None
                async with contextlib.aclosing(transfer.stream(host.path, host.manifest)) as chunks:
                    async for chunk in chunks:
                        yield chunk
        except SnapshotRefused as exc:
            self.counters["exports_cut"] += 1
            log.warning("KV is not sent to another replica (%s), it will be recomputed", exc.reason)

    async def import_(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        """Takes a snapshot in; returns how many tokens it covers, 0 when it was refused."""
        try:
            return await self._import(key, chunks)
        except SnapshotRefused as exc:
            self.counters[f"refused_{exc.reason}"] += 1
            log.warning("KV from elsewhere refused (%s), it will be recomputed", exc.reason)
            return 0

    async def _import(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        manifest, rest = await transfer.begin(chunks, key, self.identity)
        begun, size = time.monotonic(), manifest.payload_bytes
        with self.flight(key) as flight:
            if not await self.reserve(size, key.tenant):
                raise SnapshotRefused("no_room")
            path = self.new_path()
            try:
                await transfer.receive(chunks, manifest, rest, path)
                if flight.revoked:
                    raise SnapshotRefused("no_snapshot")
            except BaseException:
                path.unlink(missing_ok=True)
                self.unreserve(size)
                raise
            self.take(manifest, path, reserved=size)
        now_s = time.monotonic()
        self.cost.moved("peer", size, now_s - begun, now_s)
        self.counters["imports"] += 1
        return len(manifest.ledger)

    # -- inside: the index -----------------------------------------------------------------------------

    def trim(self, tenant: TenantId) -> None:
        """After each run of a tenant: brings it below its ceiling, and lets go of openings that are out of use."""
        for opening in self._of(SessionKey(tenant, OPENINGS)):
            if time.monotonic() - opening.used_s > _OPENING_IDLE_S:
                self.spawn(self.drop(opening))
        if self.holdings.over(tenant) > 0:
            self.spawn(self.holdings.make_room(tenant, 0))

    def _of(self, key: SessionKey) -> list[HostSnapshot | ColdSnapshot]:
        return [*self.host.of(key), *(snapshot for tier in self.cold for snapshot in tier.of(key))]

    def tier_of(self, snapshot: ColdSnapshot) -> ColdTier:
        return next(tier for tier in self.cold if tier.name == snapshot.tier)

    def worth(self, snapshot: Ranked) -> tuple[float, ...]:
        """Seconds that a byte of a snapshot is expected to save, per second that it is kept; then the last use."""
        rate = self.returns.index(snapshot.key, snapshot.used_s, len(snapshot.tokens))
        saved_s = self.cost.saved_s(snapshot.bytes, len(snapshot.tokens), time.monotonic())
        return rate * saved_s / max(1, snapshot.bytes), snapshot.used_s

    def _touch(self, snapshot: HostSnapshot) -> None:
        self._last_used_s = max(time.monotonic(), self._last_used_s + 1e-6)  # also where the clock is coarse
        snapshot.used_s = self._last_used_s
        snapshot.parked = False

    def _insert(self, snapshot: HostSnapshot) -> None:
        """Its bytes are counted already."""
        self._touch(snapshot)
        held = self.host.of(snapshot.key)
        covered = [older for older in held if older.tokens == snapshot.tokens[: len(older.tokens)]]
        self.host.add(snapshot)
        for older in covered:
            self._forget(older)
            if not older.users and not older.moving:  # else whoever uses its file drops it
                self.spawn(self.drop(older))
        self.trim(snapshot.key.tenant)
        if self.disk is not None and self.host_bytes > _DEMOTE_AHEAD * self.host_bytes_max:
            self._evict_one()

    def take(self, manifest: SnapshotManifest, path: Path, *, reserved: int) -> HostSnapshot:
        """A checked payload with its manifest, in room that was reserved for it."""
        self.host_bytes += manifest.payload_bytes - reserved
        snapshot = HostSnapshot(manifest.key, manifest.ledger, path, manifest.payload_bytes)
        snapshot.manifest = manifest
        self._insert(snapshot)
        return snapshot

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @contextlib.contextmanager
    def flight(self, key: SessionKey) -> Iterator[PendingHostSnapshot]:
        flight = PendingHostSnapshot()
        flights = self._flights.setdefault(key, set())
        flights.add(flight)
        try:
            yield flight
        finally:
            flights.remove(flight)
            if not flights:
                del self._flights[key]

    async def _settle(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    # -- inside: moving bytes ----------------------------------------------------------------------------

    async def _tag(self, snapshot: HostSnapshot) -> None:
        snapshot_id = bytes.fromhex(snapshot.path.stem)
        try:
            size, tags = await asyncio.to_thread(tag_file, snapshot.path, snapshot_id)
        except (OSError, ValueError) as exc:
            if not snapshot.gone:
                log.warning("saved KV cannot be read again: %s", exc)
                await self.drop(snapshot)
            return
        snapshot.manifest = make_manifest(snapshot.key, self.identity, snapshot.tokens, snapshot_id, size, tags)
        if self.cold and not snapshot.gone:
            self.spawn(self._copy_down(snapshot, snapshot.manifest))

    async def _check(self, snapshot: HostSnapshot) -> None:
        if snapshot.gone:
            raise SnapshotRefused("no_snapshot")
        try:
            if snapshot.manifest is None:
                raise SnapshotRefused("unreadable")
            await asyncio.to_thread(check_file, snapshot.path, snapshot.manifest)
        except SnapshotRefused as exc:
            await self.refuse(snapshot, exc.reason)
            raise

    async def _copy_down(self, snapshot: HostSnapshot, manifest: SnapshotManifest) -> None:
        """Write-behind: the tiers below get a copy while the snapshot stays. One at a time, and the newest only."""
        async with self._copying:
            for tier in self.cold:
                if snapshot.gone or tier.has(manifest.key, manifest.snapshot_id):
                    continue
                if self.holdings.over(manifest.key.tenant, manifest.payload_bytes) > 0:
                    self.counters["tenant_not_copied"] += 1
                    continue
                snapshot.users += 1
                try:
                    await tier.put(manifest, snapshot.path)
                finally:
                    self._leave(snapshot)
        self._freed.set()

    def _evict_one(self) -> None:
        """Starts to move or drop the snapshot that is wanted least, unless one is on its way."""
        idle = [snapshot for snapshot in self.host if not snapshot.users]
        if any(snapshot.moving for snapshot in idle):
            return
        victim = lowest_ranked(idle, lambda snapshot: (not snapshot.parked, *self.worth(snapshot)))
        if victim is None:
            return
        self.counters["host_evictions"] += 1
        victim.moving = True
        self.spawn(self.drop(victim) if self.disk is None else self._demote(victim))

    async def _demote(self, snapshot: HostSnapshot) -> None:
        """Moves a snapshot to disk. What cannot be stored there goes all the same: room is wanted."""
        assert self.disk is not None
        snapshot.moving = True
        try:
            if snapshot.tagging is not None:
                await snapshot.tagging
            manifest = snapshot.manifest
            if manifest is not None and not snapshot.gone and not self.disk.has(manifest.key, manifest.snapshot_id):
                await self.disk.put(manifest, snapshot.path)
        except Exception:
            log.exception("KV could not be moved to disk")
        finally:
            snapshot.moving = False
        if not snapshot.users:
            await self.drop(snapshot)
        self._freed.set()
        if self.host_bytes > _DEMOTE_AHEAD * self.host_bytes_max:
            self._evict_one()

    async def drop(self, snapshot: HostSnapshot | ColdSnapshot) -> None:
        if isinstance(snapshot, ColdSnapshot):
            return await self.tier_of(snapshot).drop(snapshot)
        self._forget(snapshot)
        if not snapshot.freed:
            snapshot.freed = True
            await asyncio.to_thread(snapshot.path.unlink, missing_ok=True)
            self.host_bytes -= snapshot.bytes
            self._freed.set()

    def _leave(self, snapshot: HostSnapshot) -> None:
        """One that uses a snapshot's file does so no more."""
        snapshot.users -= 1
        if snapshot.gone and not snapshot.users and not snapshot.freed:
            self.spawn(self.drop(snapshot))

    def _forget(self, snapshot: HostSnapshot) -> None:
        """Takes it out of the index; its room is free once `drop` has removed the file."""
        if not snapshot.gone:
            snapshot.gone = True
            self.host.remove(snapshot)
