"""The disk tier: one file per snapshot in a folder that never holds more than its bound.

Files appear whole (written beside, then renamed) and are never changed, so that a crash leaves at most a leftover with
the suffix `.part`, which the next `open` removes. They are not synced: what a crash of the machine tears is found by
the checks at the next read. The index is made from the files' headers at `open`; the order of use survives in their
times of modification.

With a key store every file is encrypted under its session's key (`seal.py`); without one, files are plain. What cannot
be decrypted is removed, except while the key store is away.

All methods run on the event loop; what blocks goes to threads. Every trouble with the folder is an answer (nothing
there, not stored), a counter and a log line. It does not know when spilling is worth it, and evicts what `rank` says is
worth least, else what was used least recently.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import io
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Final

from inference.kv.cold import ColdSnapshot, Progress, Rank, data_key_for, least_recently_used
from inference.kv.envelope import (
    Identity,
    Manifest,
    Reason,
    Refused,
    check_identity,
    check_manifest,
    encode_header,
)
from inference.kv.seal import Head, Source, Stored, store, stored_bytes
from inference.kv.shelf import Shelf, least
from sessions.errors import BadInput, SessileError, Unavailable
from sessions.ports import DataKey, Keys
from sessions.types import SessionKey, TenantId

log = logging.getLogger(__name__)

_SUFFIX: Final = ".kv"
_PART: Final = ".part"


class DiskEntry(ColdSnapshot):
    """An entry of the index."""

    __slots__ = ("path",)

    def __init__(self, key: SessionKey, tokens: array.array[int], path: Path, size: int, used_s: float) -> None:
        super().__init__("disk", key, tokens, size, used_s)
        self.path = path


DiskSnapshot = ColdSnapshot  # what engines call it: a snapshot that is not in host memory


class _Write:
    """A snapshot on its way into the folder."""

    __slots__ = ("over", "revoked", "snapshot_id")

    def __init__(self, snapshot_id: bytes) -> None:
        self.snapshot_id = snapshot_id
        self.over = asyncio.Event()
        self.revoked = False  # its session has been deleted meanwhile


class DiskTier:
    """Snapshots of one engine identity. `open` first."""

    name: str = "disk"

    def __init__(
        self,
        folder: Path,
        bytes_max: int,
        identity: Identity,
        keys: Keys | None = None,
        *,
        rank: Rank = least_recently_used,
    ) -> None:
        self.folder = folder
        self.bytes_max = bytes_max
        self.identity = identity
        self.keys = keys
        self.rank = rank
        self.bytes = 0  # of whole files and of those being written
        self.counters: Counter[str] = Counter()
        self._shelf = Shelf[DiskEntry]()
        self._writes: dict[SessionKey, list[_Write]] = {}
        self._last_used_s = 0.0

    async def open(self) -> None:
        """Makes the index. Raises BadInput when the folder cannot be used, Unavailable without the key store."""
        try:
            paths = await asyncio.to_thread(_list, self.folder)
        except OSError as exc:
            raise BadInput(
                "bad_kv_folder",
                f"The folder for spilled KV, {self.folder}, cannot be used ({exc.strerror}). Give another one, or run"
                " without spill.",
                param="kv",
            ) from exc
        found = []
        for path in paths:
            try:
                found.append(await self._index(path))
            except Refused as exc:
                if exc.reason == "keys_away":
                    raise Unavailable(
                        "keys_unavailable", "The key store does not answer; spilled KV needs it."
                    ) from exc
                self.counters[f"refused_{exc.reason}"] += 1
                log.warning("spilled KV refused (%s) and removed: %s", exc.reason, path.name)
                await asyncio.to_thread(_remove, path)
        for snapshot in sorted(found, key=lambda snapshot: snapshot.used_s):
            self._insert(snapshot)
        await self._make_room(0)

    async def close(self) -> None:
        """Nothing is held."""

    @property
    def sessions(self) -> Collection[SessionKey]:
        return self._shelf.sessions

    def of(self, key: SessionKey) -> list[ColdSnapshot]:
        return list(self._shelf.of(key))

    def of_tenant(self, tenant: TenantId) -> Collection[ColdSnapshot]:
        return self._shelf.of_tenant(tenant)

    def bytes_of(self, tenant: TenantId) -> int:
        return self._shelf.bytes_of(tenant)

    def has(self, key: SessionKey, snapshot_id: bytes) -> bool:
        name = f"{snapshot_id.hex()}{_SUFFIX}"
        return any(snapshot.path.name == name for snapshot in self._shelf.of(key))

    @property
    def num_snapshots(self) -> int:
        return len(self._shelf)

    async def put(self, manifest: Manifest, payload: Path) -> bool:
        """Stores a snapshot whose payload lies in a file. False when it could not be; nothing is left then.

        Not to be cancelled: a thread cannot be, and would go on writing into what nobody counts."""
        if self.has(manifest.key, manifest.snapshot_id):
            return True
        try:
            data_key = await self.keys.current(manifest.key) if self.keys is not None else None
        except SessileError as exc:
            self.counters["disk_keys_away"] += 1
            log.warning("KV is not spilled: %s", exc)
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
            for older in self._shelf.of(manifest.key):
                same = older.path.stem == manifest.snapshot_id.hex()
                if not same and older.tokens == tokens[: len(older.tokens)]:
                    await self._drop(older)  # what a newer one covers is of no more use
        return stored

    async def _store(
        self, manifest: Manifest, data_key: DataKey | None, size: int, payload: Path, write: _Write
    ) -> bool:
        path = self.folder / f"{manifest.snapshot_id.hex()}{_SUFFIX}"
        self.bytes += size
        try:
            await asyncio.to_thread(_write, path, manifest, payload, data_key)
            if write.revoked:
                await asyncio.to_thread(_remove, path)
                return False
            self._insert(DiskEntry(manifest.key, manifest.ledger, path, size, time.monotonic()))
            return True
        except (OSError, Refused) as exc:
            await asyncio.to_thread(_remove, path.with_suffix(_PART))
            if not write.revoked:
                self.counters["disk_write_failed"] += 1
                log.warning("spilled KV could not be written: %s", exc)
            return False
        finally:
            self.bytes -= size  # what is in the index counts there

    async def fetch(self, snapshot: ColdSnapshot, payload: Path, progress: Progress | None = None) -> Manifest:
        """Copies the verified payload to a file. Raises Refused; then the snapshot is gone from here as well."""
        assert isinstance(snapshot, DiskEntry)
        self._touch(snapshot)
        try:
            data_key = await self._key_to(snapshot)
            manifest = await asyncio.to_thread(
                _read, snapshot.path, payload, snapshot.key, self.identity, data_key, progress or Progress()
            )
        except Refused as exc:
            # These say nothing about the snapshot; one that was erased meanwhile is nobody's loss.
            if exc.reason not in ("no_room", "keys_away", "too_slow") and snapshot in self._shelf:
                await self.discard(snapshot, exc.reason)
            raise
        self.counters["disk_reads"] += 1
        return manifest

    async def stream(self, snapshot: ColdSnapshot) -> AsyncIterator[bytes]:
        """The envelope, decrypted, in chunks of at most 1 MiB; whoever takes it checks it. May raise Refused."""
        assert isinstance(snapshot, DiskEntry)
        data_key = await self._key_to(snapshot)
        try:
            with await asyncio.to_thread(snapshot.path.open, "rb", buffering=0) as file:
                stored = await asyncio.to_thread(_opened, file, data_key)
                yield encode_header(stored.manifest)
                chunks = stored.chunks()
                while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
                    yield bytes(chunk)
        except OSError as exc:
            raise Refused("unreadable") from exc

    async def discard(self, snapshot: DiskEntry, reason: Reason) -> None:
        """Removes a snapshot that proved to be no good."""
        self.counters[f"refused_{reason}"] += 1
        log.warning("spilled KV refused (%s), it will be recomputed: %s", reason, snapshot.path.name)
        await self._drop(snapshot)

    async def drop(self, snapshot: ColdSnapshot) -> None:
        assert isinstance(snapshot, DiskEntry)
        await self._drop(snapshot)

    async def erase(self, key: SessionKey) -> None:
        """Removes everything of a session; what is being written just now is waited for and removed as well."""
        writes = tuple(self._writes.get(key, ()))
        for write in writes:
            write.revoked = True
        for snapshot in self._shelf.of(key):
            await self._drop(snapshot)
        for write in writes:
            await write.over.wait()

    # -- inside --------------------------------------------------------------------------------------

    async def _index(self, path: Path) -> DiskEntry:
        """An entry for a file that was found. Raises Refused for one that is of no use."""
        head = await asyncio.to_thread(_head, path)
        data_key = await data_key_for(self.keys, head)
        return await asyncio.to_thread(_entry, path, self.identity, data_key)

    async def _key_to(self, snapshot: DiskEntry) -> DataKey | None:
        if self.keys is None:
            return None
        return await data_key_for(self.keys, await asyncio.to_thread(_head, snapshot.path))

    def _touch(self, snapshot: DiskEntry) -> None:
        """Later than all others, also where the clock is coarse."""
        self._last_used_s = max(time.monotonic(), self._last_used_s + 1e-6)
        snapshot.used_s = self._last_used_s

    def _insert(self, snapshot: DiskEntry) -> None:
        self._last_used_s = max(self._last_used_s, snapshot.used_s)
        self._shelf.add(snapshot)
        self.bytes += snapshot.bytes

    async def _drop(self, snapshot: DiskEntry) -> None:
        if self._shelf.remove(snapshot):
            await asyncio.to_thread(_remove, snapshot.path)
            self.bytes -= snapshot.bytes

    async def _make_room(self, size: int) -> bool:
        while self.bytes + size > self.bytes_max:
            victim = least(self._shelf, self.rank)
            if victim is None:
                self.counters["disk_full"] += 1  # all of it is being written right now
                return False
            await self._drop(victim)
            self.counters["disk_evictions"] += 1
        return True


# -- blocking parts, for threads ---------------------------------------------------------------------------


def _list(folder: Path) -> list[Path]:
    """The whole snapshots in the folder; leftovers are removed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    probe = folder / f"probe{_PART}"
    probe.write_bytes(b"")  # a read-only folder is told now, not at the first spill
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix == _PART:
            path.unlink()
        elif path.suffix == _SUFFIX:
            found.append(path)
    return found


def _head(path: Path) -> Head | None:
    """Whose file it is, if that stands in the clear."""
    try:
        with path.open("rb", buffering=0) as file:
            return Stored(file).head
    except FileNotFoundError as exc:
        raise Refused("no_snapshot") from exc
    except OSError as exc:
        raise Refused("unreadable") from exc


def _opened(file: Source, data_key: DataKey | None) -> Stored:
    stored = Stored(file)
    stored.open(data_key)
    return stored


def _entry(path: Path, identity: Identity, data_key: DataKey | None) -> DiskEntry:
    try:
        status = path.stat()
        with path.open("rb", buffering=0) as file:
            stored = _opened(file, data_key)
    except OSError as exc:
        raise Refused("unreadable") from exc
    manifest = stored.manifest
    check_identity(manifest, identity)
    tokens = check_manifest(manifest, manifest.key, identity)
    if status.st_size != stored.num_bytes:
        raise Refused("truncated" if status.st_size < stored.num_bytes else "too_long")
    used_s = time.monotonic() - max(0.0, time.time() - status.st_mtime)
    return DiskEntry(manifest.key, tokens, path, status.st_size, used_s)


def _write(path: Path, manifest: Manifest, payload: Path, data_key: DataKey | None) -> None:
    part = path.with_suffix(_PART)
    with part.open("wb", buffering=0) as file:
        os.fchmod(file.fileno(), 0o600)
        store(_Whole(file), manifest, payload, data_key)
    part.replace(path)


class _Whole:
    """Raw writes may be short; this one says when the rest does not fit."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            written = self._file.write(view)
            if not written:
                raise OSError("nothing could be written")
            view = view[written:]


class Watched:
    """A file whose reads are told to a Progress, piece by piece, and end when that was stopped."""

    def __init__(self, file: io.RawIOBase, progress: Progress) -> None:
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
    path: Path, payload: Path, key: SessionKey, identity: Identity, data_key: DataKey | None, progress: Progress
) -> Manifest:
    try:
        with path.open("rb", buffering=0) as file:
            stored = _opened(Watched(file, progress), data_key)
            check_manifest(stored.manifest, key, identity)
            _copy(stored, payload)
        os.utime(path)
    except FileNotFoundError as exc:
        raise Refused("no_snapshot") from exc
    except OSError as exc:
        raise Refused("unreadable") from exc
    return stored.manifest


def _copy(stored: Stored, payload: Path) -> None:
    try:
        sink = payload.open("wb", buffering=0)
    except OSError as exc:
        raise Refused("no_room") from exc
    with sink:
        whole = _Whole(sink)
        for chunk in stored.chunks():
            try:
                whole.write(chunk)
            except OSError as exc:
                raise Refused("no_room") from exc


def _remove(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
