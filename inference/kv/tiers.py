"""What of a session's KV is off the device: host memory first, then disk. One object per engine.

    device --save--> host (a file in the staging folder) --demote--> disk (an enveloped file)
           <-restore-                                    <-promote-

It decides where a snapshot lies and when it moves down or goes. Invariants: the host tier never holds more than its
bound (an engine that writes more than it announced is cut back at once), a snapshot is tagged before anything trusts it
and checked against its tags each time it is used, and `erase` leaves nothing of a session in any tier, whatever was on
its way at the time.

A session may have several snapshots (branches); one that another covers is dropped. It does not know
engines, nor when saving or restoring is worth it. Order of eviction: parked sessions, then the least recently used.
What moves bytes runs in tasks of its own: cancelling a caller never leaves half a file.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Set
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from inference.kv.disk import DiskSnapshot, DiskTier
from inference.kv.envelope import (
    CHUNK_BYTES,
    Identity,
    Manifest,
    PayloadCheck,
    Refused,
    check_file,
    check_manifest,
    decode_header,
    encode_header,
    make_manifest,
    tag_file,
)
from inference.tokens import common_prefix
from sessions.ports import KVPlace
from sessions.types import SessionKey

log = logging.getLogger(__name__)
T = TypeVar("T")

SHARED: Final = "~"  # no session's id begins so: names of snapshots that are no session's own
_ROOM_WAIT_S: Final = 1.0  # how long a save may wait for demotions before it is given up
_DEMOTE_AHEAD: Final = 0.8  # above this share of the bound, snapshots move to disk before room is wanted


class HostSnapshot:
    """A payload in the staging folder. The tiers' own; engines only hand it back."""

    __slots__ = (
        "bytes",
        "freed",
        "gone",
        "key",
        "manifest",
        "moving",
        "parked",
        "path",
        "tagging",
        "tokens",
        "used",
        "users",
    )

    def __init__(self, key: SessionKey, tokens: array.array[int], path: Path, size: int) -> None:
        self.key = key
        self.tokens = tokens
        self.path = path
        self.bytes = size
        self.used = 0
        self.parked = False
        self.users = 0  # somebody reads the file: it is not evicted meanwhile
        self.moving = False  # on its way to disk
        self.gone = False  # out of the index: nobody may begin to use it
        self.freed = False
        self.manifest: Manifest | None = None  # once tagged
        self.tagging: asyncio.Task[None] | None = None


class Tiers:
    """`open` first; `close` moves what it can to disk. Everything else may be called at any time between."""

    def __init__(self, identity: Identity, folder: Path, host_bytes_max: int, disk: DiskTier | None) -> None:
        self.identity = identity
        self.folder = folder
        self.host_bytes_max = host_bytes_max
        self.host_bytes = 0  # files, and room that was reserved for one
        self.disk = disk
        self.counters: Counter[str] = Counter()
        self._host: dict[SessionKey, list[HostSnapshot]] = {}
        self._ticks = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._freed = asyncio.Event()  # set whenever host memory may have become free

    async def open(self) -> None:
        """Raises BadInput when the disk tier's folder cannot be used."""
        if self.disk is not None:
            await self.disk.open()

    async def close(self, deadline_s: float) -> None:
        """Moves host snapshots to disk, the latest used first, beginning none after `deadline_s`; drops the rest."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        await self._settle()
        if self.disk is not None:
            for snapshot in sorted(self._all(), key=lambda s: -s.used):
                if loop.time() < deadline:
                    await self._spawn(self._demote(snapshot))
        for snapshot in tuple(self._all()):
            await self._drop(snapshot)
        await self._settle()

    # -- finding -------------------------------------------------------------------------------------

    def find(self, key: SessionKey, prompt: array.array[int]) -> tuple[HostSnapshot | DiskSnapshot | None, int]:
        """The snapshot that shares most leading tokens with `prompt`, and how many; host before disk."""
        best: HostSnapshot | DiskSnapshot | None = None
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
        return KVPlace("host" if isinstance(best, HostSnapshot) else "disk", len(best.tokens))

    def has_others(self, resident: Set[SessionKey | None]) -> bool:
        """Whether host memory holds a session that is not parked and none of `resident`."""
        return any(
            key not in resident and not key.session.startswith(SHARED) and not all(snapshot.parked for snapshot in held)
            for key, held in self._host.items()
        )

    @property
    def num_host(self) -> int:
        return sum(map(len, self._host.values()))

    # -- into host memory ------------------------------------------------------------------------------

    def new_path(self) -> Path:
        """A name in the staging folder that nothing has; its stem is the snapshot's id."""
        return self.folder / f"{os.urandom(16).hex()}.slot"

    async def reserve(self, size: int) -> bool:
        """Makes room for `size` bytes in host memory. False when that is impossible or takes too long.

        On True the bytes are counted: `adopt` or `unreserve` comes next."""
        if size > self.host_bytes_max:
            self.counters["host_too_large"] += 1
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
        snapshot.tagging = self._spawn(self._tag(snapshot))
        if self.host_bytes > self.host_bytes_max:
            self.counters["host_overrun"] += 1
            self._spawn(self._drop(snapshot))

    # -- out of it -------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def payload(self, snapshot: HostSnapshot | DiskSnapshot) -> AsyncIterator[HostSnapshot]:
        """The checked payload as a file in the staging folder, for as long as the context lasts.

        Raises Refused; then the snapshot has been dropped and counted."""
        async with self.held(snapshot) as host:
            if host is snapshot:  # else it was checked on its way up
                await self._check(host)
            yield host

    @contextlib.asynccontextmanager
    async def held(self, snapshot: HostSnapshot | DiskSnapshot) -> AsyncIterator[HostSnapshot]:
        """The payload as a file, not evicted for as long as the context lasts, with its manifest.

        For a reader that checks what it reads itself and says `refuse` where that failed. Raises Refused."""
        if isinstance(snapshot, DiskSnapshot):
            host = await asyncio.shield(self._spawn(self._promote(snapshot)))
        else:
            host = snapshot
        host.users += 1
        try:
            if host.tagging is not None:
                await asyncio.shield(host.tagging)
            if host.gone or host.manifest is None:
                raise Refused("no_snapshot")
            self._touch(host)
            yield host
        finally:
            host.users -= 1

    async def refuse(self, snapshot: HostSnapshot, reason: str) -> None:
        """Drops a snapshot that a reader found to be no good."""
        self.counters[f"refused_{reason}"] += 1
        log.warning("saved KV refused (%s), it will be recomputed", reason)
        await self._drop(snapshot)

    def park(self, key: SessionKey) -> None:
        """Its snapshots go first when room is wanted."""
        for snapshot in self._host.get(key, ()):
            snapshot.parked = True

    async def erase(self, key: SessionKey) -> None:
        """Removes everything of a session from host and disk."""
        for snapshot in tuple(self._host.get(key, ())):
            await self._drop(snapshot)
        if self.disk is not None:
            await self.disk.erase(key)

    # -- between replicas ------------------------------------------------------------------------------

    async def export(self, key: SessionKey) -> AsyncIterator[bytes] | None:
        """The session's longest snapshot in the envelope, in chunks of at most 1 MiB; None without one."""
        best = max(self._of(key), key=lambda snapshot: len(snapshot.tokens), default=None)
        if isinstance(best, DiskSnapshot):
            assert self.disk is not None
            return self.disk.stream(best)
        if best is None:
            return None
        if best.tagging is not None:
            await asyncio.shield(best.tagging)
        return None if best.manifest is None or best.gone else self._stream(best, best.manifest)

    async def _stream(self, snapshot: HostSnapshot, manifest: Manifest) -> AsyncIterator[bytes]:
        snapshot.users += 1
        try:
            header = encode_header(manifest)
            for start in range(0, len(header), CHUNK_BYTES):
                yield header[start : start + CHUNK_BYTES]
            with await asyncio.to_thread(snapshot.path.open, "rb") as file:
                while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
                    yield data
        finally:
            snapshot.users -= 1

    async def import_(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        """Takes a snapshot in; returns how many tokens it covers, 0 when it was refused."""
        try:
            return await self._import(key, chunks)
        except Refused as exc:
            self.counters[f"refused_{exc.reason}"] += 1
            log.warning("KV from elsewhere refused (%s), it will be recomputed", exc.reason)
            return 0

    async def _import(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        head = b""
        async for chunk in chunks:
            head += chunk
            decoded = decode_header(head)
            if decoded is not None:
                break
        else:
            raise Refused("truncated")
        manifest, header_bytes = decoded
        check_manifest(manifest, key, self.identity)
        if not await self.reserve(manifest.payload_bytes):
            raise Refused("no_room")
        path, check = self.new_path(), PayloadCheck(manifest)
        try:
            with await asyncio.to_thread(_create, path) as file:
                for part in check.feed(head[header_bytes:]):
                    await _append(file, part)
                async for chunk in chunks:
                    for part in check.feed(chunk):
                        await _append(file, part)
                check.finish()
        except BaseException:
            path.unlink(missing_ok=True)
            self.unreserve(manifest.payload_bytes)
            raise
        self._take(manifest, path)
        self.counters["imports"] += 1
        return len(manifest.ledger)

    # -- inside: the index -----------------------------------------------------------------------------

    def _all(self) -> Iterator[HostSnapshot]:
        return (snapshot for held in self._host.values() for snapshot in held)

    def _of(self, key: SessionKey) -> list[HostSnapshot | DiskSnapshot]:
        on_disk = self.disk.of(key) if self.disk is not None else []
        return [*self._host.get(key, ()), *on_disk]

    def _touch(self, snapshot: HostSnapshot) -> None:
        self._ticks += 1
        snapshot.used = self._ticks
        snapshot.parked = False

    def _insert(self, snapshot: HostSnapshot) -> None:
        """Its bytes are counted already."""
        self._touch(snapshot)
        held = self._host.setdefault(snapshot.key, [])
        covered = [older for older in held if older.tokens == snapshot.tokens[: len(older.tokens)]]
        held.append(snapshot)
        for older in covered:
            self._forget(older)
            self._spawn(self._drop(older))
        if self.disk is not None and self.host_bytes > _DEMOTE_AHEAD * self.host_bytes_max:
            self._evict_one()

    def _take(self, manifest: Manifest, path: Path) -> HostSnapshot:
        """A checked payload with its manifest, in room that was reserved for it."""
        snapshot = HostSnapshot(manifest.key, manifest.ledger, path, manifest.payload_bytes)
        snapshot.manifest = manifest
        self._insert(snapshot)
        return snapshot

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

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
                await self._drop(snapshot)
            return
        snapshot.manifest = make_manifest(snapshot.key, self.identity, snapshot.tokens, snapshot_id, size, tags)

    async def _check(self, snapshot: HostSnapshot) -> None:
        if snapshot.gone:
            raise Refused("no_snapshot")
        try:
            if snapshot.manifest is None:
                raise Refused("unreadable")
            await asyncio.to_thread(check_file, snapshot.path, snapshot.manifest)
        except Refused as exc:
            await self.refuse(snapshot, exc.reason)
            raise

    async def _promote(self, snapshot: DiskSnapshot) -> HostSnapshot:
        assert self.disk is not None
        size = snapshot.bytes  # of the whole file, so a little more than is needed
        if not await self.reserve(size):
            raise Refused("no_room")
        path = self.new_path()
        try:
            manifest = await self.disk.fetch(snapshot, path)
        except Refused:
            await asyncio.to_thread(path.unlink, missing_ok=True)
            self.unreserve(size)
            raise
        self.host_bytes += manifest.payload_bytes - size
        return self._take(manifest, path)

    def _evict_one(self) -> None:
        """Starts to move or drop the snapshot that is wanted least, unless one is on its way."""
        idle = [snapshot for snapshot in self._all() if not snapshot.users]
        if not idle or any(snapshot.moving for snapshot in idle):
            return
        victim = min(idle, key=lambda snapshot: (not snapshot.parked, snapshot.used))
        self.counters["host_evictions"] += 1
        victim.moving = True
        self._spawn(self._drop(victim) if self.disk is None else self._demote(victim))

    async def _demote(self, snapshot: HostSnapshot) -> None:
        """Moves a snapshot to disk. What cannot be stored there goes all the same: room is wanted."""
        assert self.disk is not None
        snapshot.moving = True
        if snapshot.tagging is not None:
            await snapshot.tagging
        if snapshot.manifest is not None and not snapshot.gone and not self.disk.has(snapshot.manifest.snapshot_id):
            await self.disk.put(snapshot.manifest, snapshot.path)
        snapshot.moving = False
        if not snapshot.users:
            await self._drop(snapshot)
        self._freed.set()
        if self.host_bytes > _DEMOTE_AHEAD * self.host_bytes_max:
            self._evict_one()

    async def _drop(self, snapshot: HostSnapshot) -> None:
        self._forget(snapshot)
        if not snapshot.freed:
            snapshot.freed = True
            await asyncio.to_thread(snapshot.path.unlink, missing_ok=True)
            self.host_bytes -= snapshot.bytes
            self._freed.set()

    def _forget(self, snapshot: HostSnapshot) -> None:
        """Takes it out of the index; its room is free once `_drop` has removed the file."""
        if not snapshot.gone:
            snapshot.gone = True
            held = self._host[snapshot.key]
            held.remove(snapshot)
            if not held:
                del self._host[snapshot.key]


def _create(path: Path) -> BinaryIO:
    try:
        return path.open("wb", buffering=0)
    except OSError as exc:
        raise Refused("no_room") from exc


async def _append(file: BinaryIO, part: bytes) -> None:
    writing = asyncio.ensure_future(asyncio.to_thread(file.write, part))
    try:
        await asyncio.shield(writing)
    except OSError as exc:
        raise Refused("no_room") from exc
    except asyncio.CancelledError:
        await asyncio.wait([writing])  # the file must not be closed under the thread
        raise
