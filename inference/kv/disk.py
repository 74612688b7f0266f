"""The disk tier: one file per snapshot in a folder that never holds more than its bound.

Files appear whole (written beside, then renamed) and are never changed, so that a crash leaves at most a leftover with
the suffix `.part`, which the next `open` removes. They are not synced: what a crash of the machine tears is found by
the checks at the next read. The index is made from the files' headers at `open`; the order of use survives in their
times of modification.

With a key store every file is encrypted under its session's key (`encryption.py`); without one, files are plain. What
cannot be decrypted is removed, except while the key store is away.

A folder that turns read-only or fails keeps what it holds, as long as that can be read, and takes nothing more: a file
that cannot be removed counts against the bound, and is tried again when room is needed.

All methods run on the event loop; what blocks goes to threads. Every trouble with the folder is an answer (nothing
there, not stored), a counter and a log line. It does not know when spilling is worth it, and evicts what `rank` says is
worth least, else what was used least recently.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import io
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import structlog

from inference.kv.cold_tier import ColdSnapshot, FetchProgress, Rank, data_key_for, least_recently_used
from inference.kv.encryption import ByteSource, StoredHead, StoredSnapshotReader, store, stored_bytes
from inference.kv.envelope import KvIdentity, Reason, SnapshotManifest, SnapshotRefused, check_manifest, encode_header
from inference.kv.index import IndexedTier, lowest_ranked
from sessions.model.errors import BadInput, SessileError, Unavailable
from sessions.model.types import SessionKey
from sessions.ports import DataKey, Keys

log = structlog.get_logger(__name__)

_SUFFIX: Final = ".kv"
_PART: Final = ".part"
_PROBE_BYTES: Final = 1 << 20
RESERVE_BYTES: Final = 256 << 20  # of the file system stay free: the journal may be on it too


class DiskEntry(ColdSnapshot):
    """A snapshot in the tier's folder."""

    __slots__ = ("path",)

    def __init__(
        self,
        key: SessionKey,
        tokens: array.array[int],
        path: Path,
        size: int,
        used_s: float,
        scope: bytes = b"",
    ) -> None:
        super().__init__("disk", key, tokens, size, used_s, scope)
        self.path = path


class _Write:
    """A snapshot that is being written into the folder."""

    __slots__ = ("over", "revoked", "snapshot_id")

    def __init__(self, snapshot_id: bytes) -> None:
        self.snapshot_id = snapshot_id
        self.over = asyncio.Event()
        self.revoked = False  # whether its session was deleted meanwhile


class DiskTier(IndexedTier[DiskEntry]):
    """Snapshots of one engine identity in a folder. `open` comes first. Each method has a half that runs in a
    thread."""

    name: str = "disk"

    def __init__(
        self,
        folder: Path,
        bytes_max: int,
        identity: KvIdentity,
        keys: Keys | None = None,
        *,
        rank: Rank = least_recently_used,
    ) -> None:
        super().__init__()
        self.folder = folder
        self.bytes_max = bytes_max
        self.identity = identity
        self.keys = keys
        self.rank = rank
        self.bytes = 0  # of complete files, those being written, and those that could not be removed
        self.counters: Counter[str] = Counter()
        self._stuck: dict[Path, int] = {}  # files that are of no use and could not be removed, and their bytes
        self._stuck_logged = False
        self._writes: dict[SessionKey, list[_Write]] = {}
        self._last_used_s = 0.0

    async def open(self) -> None:
        """Reads the folder into the index. Raises BadInput when it cannot be used, Unavailable without the key
        store."""
        try:
            files = await asyncio.to_thread(_list, self.folder, self.bytes_max)
        except OSError as exc:
            raise BadInput(
                "bad_kv_folder",
                f"The folder for spilled KV, {self.folder}, cannot be used ({exc.strerror}). Give another one, or run"
                " without spill.",
                param="kv",
            ) from exc
        entries = []
        for path, size in files:
            self.bytes += size
            try:
                entries.append(await self._index_file(path))
            except SnapshotRefused as exc:
                if exc.reason == "keys_away":
                    raise Unavailable(
                        "keys_unavailable", "The key store does not answer; spilled KV needs it."
                    ) from exc
                self.counters[f"refused_{exc.reason}"] += 1
                log.warning("snapshot_refused", tier=self.name, reason=exc.reason, file=path.name)
                await self._remove(path, size)
        for snapshot in sorted(entries, key=lambda snapshot: snapshot.used_s):
            self._insert(snapshot)
        await self._make_room(0)

    async def close(self) -> None:
        """Does nothing: the tier keeps no file open."""

    async def discover(self, key: SessionKey) -> None:
        """Does nothing: only this process uses the folder, so it knows all snapshots in it."""

    def has(self, key: SessionKey, snapshot_id: bytes) -> bool:
        name = f"{snapshot_id.hex()}{_SUFFIX}"
        return any(snapshot.path.name == name for snapshot in self._snapshots.of(key))

    async def put(self, manifest: SnapshotManifest, payload: Path) -> bool:
        """Stores a snapshot whose payload lies in a file. Returns False when that failed; nothing is left of it then.

        Not to be cancelled: a thread cannot be, and would go on writing into what nobody counts."""
        if self.has(manifest.key, manifest.snapshot_id):
            return True
        try:
            data_key = await self.keys.current(manifest.key) if self.keys is not None else None
        except SessileError as exc:
            self.counters["disk_keys_away"] += 1
            log.warning("snapshot_write_failed", tier=self.name, error=str(exc))
            return False
        size, tokens = stored_bytes(manifest, data_key), manifest.ledger
        if size > self.bytes_max:
            self.counters["disk_too_large"] += 1
            return False
        for other in self._writes.get(manifest.key, ()):
            if other.snapshot_id == manifest.snapshot_id:  # a copy and a move down at the same time: one file
                await other.over.wait()
                return self.has(manifest.key, manifest.snapshot_id)
        write = _Write(manifest.snapshot_id)
        self._writes.setdefault(manifest.key, []).append(write)
        try:
            stored = await self._make_room(size) and await self._store(manifest, data_key, size, payload, write)
        finally:
            writes = self._writes[manifest.key]
            writes.remove(write)
            if not writes:
                del self._writes[manifest.key]
            write.over.set()
        if stored:
            self.counters["disk_writes"] += 1
            for older in self._snapshots.of(manifest.key):
                same = older.path.stem == manifest.snapshot_id.hex()
                if not same and older.tokens == tokens[: len(older.tokens)]:
                    await self._drop(older)  # what a newer one covers is of no more use
        return stored

    async def _store(
        self, manifest: SnapshotManifest, data_key: DataKey | None, size: int, payload: Path, write: _Write
    ) -> bool:
        path = self.folder / f"{manifest.snapshot_id.hex()}{_SUFFIX}"
        self.bytes += size
        try:
            await asyncio.to_thread(_write, path, manifest, payload, data_key)
        except BaseException as exc:
            await self._remove(path.with_suffix(_PART), size)
            if not isinstance(exc, OSError | SnapshotRefused):
                raise
            if not write.revoked:
                self.counters["disk_write_failed"] += 1
                log.warning("snapshot_write_failed", tier=self.name, error=str(exc))
            return False
        if write.revoked:
            await self._remove(path, size)
            return False
        for overwritten in (path, path.with_suffix(_PART)):
            self.bytes -= self._stuck.pop(overwritten, 0)
        self._insert(DiskEntry(manifest.key, manifest.ledger, path, size, time.monotonic(), manifest.scope))
        return True

    async def fetch(
        self, snapshot: ColdSnapshot, payload: Path, progress: FetchProgress | None = None
    ) -> SnapshotManifest:
        """Copies the checked payload to a file and returns the manifest. Raises SnapshotRefused; if the snapshot is
        damaged it has been removed from the tier by then."""
        assert isinstance(snapshot, DiskEntry)
        self._touch(snapshot)
        try:
            data_key = await self._key_to(snapshot)
            manifest = await asyncio.to_thread(
                _read, snapshot.path, payload, snapshot.key, self.identity, data_key, progress or FetchProgress()
            )
        except SnapshotRefused as exc:
            await self._refused(snapshot, exc.reason)
            raise
        self.counters["disk_reads"] += 1
        return manifest

    async def stream(self, snapshot: ColdSnapshot) -> AsyncGenerator[bytes, None]:
        assert isinstance(snapshot, DiskEntry)
        try:
            data_key = await self._key_to(snapshot)
            with await asyncio.to_thread(snapshot.path.open, "rb", buffering=0) as file:
                stored = await asyncio.to_thread(_opened, file, data_key)
                yield encode_header(stored.manifest)
                chunks = stored.chunks()
                while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
                    yield bytes(chunk)
        except SnapshotRefused as exc:
            await self._refused(snapshot, exc.reason)
            raise
        except OSError as exc:
            await self._refused(snapshot, "unreadable")
            raise SnapshotRefused("unreadable") from exc

    async def _refused(self, snapshot: DiskEntry, reason: Reason) -> None:
        """Removes a snapshot that proved unusable; ignores one that was erased meanwhile."""
        if reason in ("no_room", "keys_away", "too_slow") or snapshot not in self._snapshots:
            return  # these say nothing about the snapshot
        self.counters[f"refused_{reason}"] += 1
        log.warning("snapshot_refused", tier=self.name, reason=reason, file=snapshot.path.name)
        await self._drop(snapshot)

    async def drop(self, snapshot: ColdSnapshot) -> None:
        assert isinstance(snapshot, DiskEntry)
        await self._drop(snapshot)

    async def erase(self, key: SessionKey) -> None:
        """Removes all snapshots of a session; waits for those that are being written, and removes them too."""
        writes = tuple(self._writes.get(key, ()))
        for write in writes:
            write.revoked = True
        for snapshot in self._snapshots.of(key):
            await self._drop(snapshot)
        for write in writes:
            await write.over.wait()

    # -- inside --------------------------------------------------------------------------------------

    async def _index_file(self, path: Path) -> DiskEntry:
        """Makes the index entry of a file. Raises SnapshotRefused for an unusable one."""
        head = await asyncio.to_thread(_head, path)
        data_key = await data_key_for(self.keys, head)
        return await asyncio.to_thread(_entry, path, self.identity, data_key)

    async def _key_to(self, snapshot: DiskEntry) -> DataKey | None:
        if self.keys is None:
            return None
        return await data_key_for(self.keys, await asyncio.to_thread(_head, snapshot.path))

    def _touch(self, snapshot: DiskEntry) -> None:
        """Marks the snapshot as the one used last, also if the clock has not moved since the last use."""
        self._last_used_s = max(time.monotonic(), self._last_used_s + 1e-6)
        snapshot.used_s = self._last_used_s

    def _insert(self, snapshot: DiskEntry) -> None:
        """Adds a snapshot, whose bytes are counted already, to the index."""
        self._last_used_s = max(self._last_used_s, snapshot.used_s)
        self._snapshots.add(snapshot)

    async def _drop(self, snapshot: DiskEntry) -> None:
        if self._snapshots.remove(snapshot):
            await self._remove(snapshot.path, snapshot.bytes)

    async def _make_room(self, size: int) -> bool:
        for path, stuck in tuple(self._stuck.items()):
            if not await self._unlink(path):
                break
            if self._stuck.pop(path, None) is not None:
                self.bytes -= stuck
        while self.bytes + size > self.bytes_max:
            victim = lowest_ranked(self._snapshots, self.rank)
            if victim is None or not await self._unlink(victim.path):
                self.counters["disk_full"] += 1  # all of it is being written right now, or nothing can be removed
                return False
            if self._snapshots.remove(victim):
                self.bytes -= victim.bytes
                self.counters["disk_evictions"] += 1
        return True

    async def _remove(self, path: Path, size: int) -> None:
        """Removes a file and subtracts its size from the tier's bytes. If the file cannot be removed, its bytes stay
        counted."""
        if await self._unlink(path):
            self.bytes -= size
        else:
            self._stuck[path] = size

    async def _unlink(self, path: Path) -> bool:
        """Removes a file; returns False where it is still there, as far as one can tell."""
        try:
            await asyncio.to_thread(path.unlink, missing_ok=True)
        except OSError as exc:
            self.counters["disk_remove_failed"] += 1
            if not self._stuck_logged:
                self._stuck_logged = True
                log.error("snapshot_removal_failed", tier=self.name, error=str(exc))
            return False
        self._stuck_logged = False
        return True


# -- blocking parts, for threads ---------------------------------------------------------------------------


def _list(folder: Path, bytes_max: int) -> list[tuple[Path, int]]:
    """Returns the complete snapshots in the folder with their sizes; removes incomplete ones."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = []
    for path in sorted(folder.iterdir()):
        if path.suffix == _PART:
            path.unlink()
        elif path.suffix == _SUFFIX:
            files.append((path, path.stat().st_size))
    probe = folder / f"probe{_PART}"
    try:
        probe.write_bytes(os.urandom(_PROBE_BYTES))  # a read-only or full folder is refused now, not at the first spill
    finally:
        probe.unlink(missing_ok=True)
    room = max(0, _free_bytes(folder) - RESERVE_BYTES) + sum(size for _, size in files)
    if room < bytes_max:
        log.warning(
            "disk_tier_reduced",
            folder=str(folder),
            room_mb=room // 1_000_000,
            requested_mb=bytes_max // 1_000_000,
            kept_free_mb=RESERVE_BYTES // 1_000_000,
            advice="make room, or request less with --kv-disk-mb",
        )
    return files


def _free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _head(path: Path) -> StoredHead | None:
    """Returns the plain-text head of an encrypted snapshot's file; None for a plain snapshot."""
    try:
        with path.open("rb", buffering=0) as file:
            return StoredSnapshotReader(file).head
    except FileNotFoundError as exc:
        raise SnapshotRefused("no_snapshot") from exc
    except OSError as exc:
        raise SnapshotRefused("unreadable") from exc


def _opened(file: ByteSource, data_key: DataKey | None) -> StoredSnapshotReader:
    stored = StoredSnapshotReader(file)
    stored.open(data_key)
    return stored


def _entry(path: Path, identity: KvIdentity, data_key: DataKey | None) -> DiskEntry:
    try:
        status = path.stat()
        with path.open("rb", buffering=0) as file:
            stored = _opened(file, data_key)
    except OSError as exc:
        raise SnapshotRefused("unreadable") from exc
    manifest = stored.manifest
    tokens = check_manifest(manifest, manifest.key, identity)
    if status.st_size != stored.num_bytes:
        raise SnapshotRefused("truncated" if status.st_size < stored.num_bytes else "too_long")
    used_s = time.monotonic() - max(0.0, time.time() - status.st_mtime)
    return DiskEntry(manifest.key, tokens, path, status.st_size, used_s, manifest.scope)


def _write(path: Path, manifest: SnapshotManifest, payload: Path, data_key: DataKey | None) -> None:
    if _free_bytes(path.parent) - manifest.payload_bytes < RESERVE_BYTES:
        raise OSError("its file system is almost full")
    part = path.with_suffix(_PART)
    with part.open("wb", buffering=0) as file:
        os.fchmod(file.fileno(), 0o600)
        store(_Whole(file), manifest, payload, data_key)
    part.replace(path)


class _Whole:
    """A writer to a raw file that always writes all of the data, although a single write of the file may be short.
    Raises OSError if the rest does not fit."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            written = self._file.write(view)
            if not written:
                raise OSError("nothing could be written")
            view = view[written:]


class ProgressReader:
    """A file whose reads report to a FetchProgress, piece by piece, and raise once that was stopped."""

    def __init__(self, file: io.RawIOBase, progress: FetchProgress) -> None:
        self._file = file
        self._progress = progress

    def read(self, size: int, /) -> bytes:
        data = self._file.read(size) or b""
        self._progress.passed(len(data))
        return data

    def readinto(self, buffer: memoryview, /) -> int:
        done = self._file.readinto(buffer[: self._progress.piece_bytes]) or 0
        self._progress.passed(done)
        return done


def _read(
    path: Path, payload: Path, key: SessionKey, identity: KvIdentity, data_key: DataKey | None, progress: FetchProgress
) -> SnapshotManifest:
    try:
        with path.open("rb", buffering=0) as file:
            stored = _opened(ProgressReader(file, progress), data_key)
            check_manifest(stored.manifest, key, identity)
            _copy(stored, payload)
        with contextlib.suppress(OSError):  # removed meanwhile, or a folder that has become read-only: it was read
            os.utime(path)
    except FileNotFoundError as exc:
        raise SnapshotRefused("no_snapshot") from exc
    except OSError as exc:
        raise SnapshotRefused("unreadable") from exc
    return stored.manifest


def _copy(stored: StoredSnapshotReader, payload: Path) -> None:
    try:
        sink = payload.open("wb", buffering=0)
    except OSError as exc:
        raise SnapshotRefused("no_room") from exc
    with sink:
        whole = _Whole(sink)
        for chunk in stored.chunks():
            try:
                whole.write(chunk)
            except OSError as exc:
                raise SnapshotRefused("no_room") from exc
