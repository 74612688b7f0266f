"""The disk tier: one file per snapshot in a folder that never holds more than its bound.

Files appear whole (written beside, then renamed) and are never changed, so that a crash leaves at most a leftover with
the suffix `.part`, which the next `open` removes. They are not synced: what a crash of the machine tears is found by
the checks at the next read. The index is made from the files' headers at `open`; the order of use survives in their
times of modification.

All methods run on the event loop; what blocks goes to threads. Every trouble with the folder is an answer (nothing
there, not stored), a counter and a log line. It does not know when spilling is worth it.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO, Final

from inference.kv.envelope import (
    CHUNK_BYTES,
    Identity,
    Manifest,
    PayloadCheck,
    Reason,
    Refused,
    check_identity,
    check_manifest,
    decode_header,
    encode_header,
)
from sessions.errors import BadInput
from sessions.types import SessionKey

log = logging.getLogger(__name__)

_SUFFIX: Final = ".kv"
_PART: Final = ".part"
_HEADER_GUESS: Final = 64 << 10


class DiskSnapshot:
    """An entry of the index."""

    __slots__ = ("bytes", "key", "path", "tokens", "used")

    def __init__(self, key: SessionKey, tokens: array.array[int], path: Path, size: int, used: float) -> None:
        self.key = key
        self.tokens = tokens
        self.path = path
        self.bytes = size
        self.used = used


class _Write:
    """A snapshot on its way into the folder."""

    __slots__ = ("over", "revoked")

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.revoked = False  # its session has been deleted meanwhile


class DiskTier:
    """Snapshots of one engine identity. `open` first."""

    def __init__(self, folder: Path, bytes_max: int, identity: Identity) -> None:
        self.folder = folder
        self.bytes_max = bytes_max
        self.identity = identity
        self.bytes = 0  # of whole files and of those being written
        self.counters: Counter[str] = Counter()
        self._of: dict[SessionKey, list[DiskSnapshot]] = {}
        self._writes: dict[SessionKey, list[_Write]] = {}
        self._ticks = 0.0

    async def open(self) -> None:
        """Makes the index. Raises BadInput when the folder cannot be used."""
        try:
            found = await asyncio.to_thread(_scan, self.folder, self.identity, self.counters)
        except OSError as exc:
            raise BadInput(
                "bad_kv_folder",
                f"The folder for spilled KV, {self.folder}, cannot be used ({exc.strerror}). Give another one, or run"
                " without spill.",
                param="kv",
            ) from exc
        for snapshot in sorted(found, key=lambda snapshot: snapshot.used):
            self._insert(snapshot)
        await self._make_room(0)

    def of(self, key: SessionKey) -> list[DiskSnapshot]:
        return list(self._of.get(key, ()))

    def has(self, snapshot_id: bytes) -> bool:
        name = f"{snapshot_id.hex()}{_SUFFIX}"
        return any(snapshot.path.name == name for held in self._of.values() for snapshot in held)

    @property
    def num_snapshots(self) -> int:
        return sum(map(len, self._of.values()))

    async def put(self, manifest: Manifest, payload: Path) -> bool:
        """Stores a snapshot whose payload lies in a file. False when it could not be; nothing is left then.

        Not to be cancelled: a thread cannot be, and would go on writing into what nobody counts."""
        header = encode_header(manifest)
        size, tokens = len(header) + manifest.payload_bytes, manifest.ledger
        if size > self.bytes_max:
            self.counters["disk_too_large"] += 1
            return False
        if self.has(manifest.snapshot_id):
            return True
        write = _Write()
        self._writes.setdefault(manifest.key, []).append(write)
        try:
            stored = await self._make_room(size) and await self._store(manifest, header, payload, write)
        finally:
            writes = self._writes[manifest.key]
            writes.remove(write)
            if not writes:
                del self._writes[manifest.key]
            write.over.set()
        if stored:
            self.counters["disk_writes"] += 1
            for older in self.of(manifest.key):
                if len(older.tokens) < len(tokens) and older.tokens == tokens[: len(older.tokens)]:
                    await self._drop(older)  # what a newer one covers is of no more use
        return stored

    async def _store(self, manifest: Manifest, header: bytes, payload: Path, write: _Write) -> bool:
        size = len(header) + manifest.payload_bytes
        path = self.folder / f"{manifest.snapshot_id.hex()}{_SUFFIX}"
        self.bytes += size
        try:
            await asyncio.to_thread(_write, path, header, payload, manifest.payload_bytes)
            if write.revoked:
                await asyncio.to_thread(_remove, path)
                return False
            self._insert(DiskSnapshot(manifest.key, manifest.ledger, path, size, 0.0))
            return True
        except OSError as exc:
            await asyncio.to_thread(_remove, path.with_suffix(_PART))
            self.counters["disk_write_failed"] += 1
            log.warning("spilled KV could not be written: %s", exc)
            return False
        finally:
            self.bytes -= size  # what is in the index counts there

    async def fetch(self, snapshot: DiskSnapshot, payload: Path) -> Manifest:
        """Copies the verified payload to a file. Raises Refused; then the snapshot is gone from here as well."""
        self._ticks += 1
        snapshot.used = self._ticks
        try:
            manifest = await asyncio.to_thread(_read, snapshot.path, payload, snapshot.key, self.identity)
        except Refused as exc:
            # No room says nothing about the snapshot; one that was erased meanwhile is nobody's loss.
            if exc.reason != "no_room" and snapshot in self.of(snapshot.key):
                await self.discard(snapshot, exc.reason)
            raise
        self.counters["disk_reads"] += 1
        return manifest

    async def stream(self, snapshot: DiskSnapshot) -> AsyncIterator[bytes]:
        """The file as it is; whoever takes it checks it."""
        with await asyncio.to_thread(snapshot.path.open, "rb") as file:
            while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield data

    async def discard(self, snapshot: DiskSnapshot, reason: Reason) -> None:
        """Removes a snapshot that proved to be no good."""
        self.counters[f"refused_{reason}"] += 1
        log.warning("spilled KV refused (%s), it will be recomputed: %s", reason, snapshot.path.name)
        await self._drop(snapshot)

    async def erase(self, key: SessionKey) -> None:
        """Removes everything of a session; what is being written just now is waited for and removed as well."""
        writes = tuple(self._writes.get(key, ()))
        for write in writes:
            write.revoked = True
        for snapshot in self.of(key):
            await self._drop(snapshot)
        for write in writes:
            await write.over.wait()

    # -- inside --------------------------------------------------------------------------------------

    def _insert(self, snapshot: DiskSnapshot) -> None:
        self._ticks += 1
        snapshot.used = self._ticks
        self._of.setdefault(snapshot.key, []).append(snapshot)
        self.bytes += snapshot.bytes

    async def _drop(self, snapshot: DiskSnapshot) -> None:
        held = self._of.get(snapshot.key, [])
        if snapshot in held:
            held.remove(snapshot)
            if not held:
                del self._of[snapshot.key]
            await asyncio.to_thread(_remove, snapshot.path)
            self.bytes -= snapshot.bytes

    async def _make_room(self, size: int) -> bool:
        while self.bytes + size > self.bytes_max:
            held = [snapshot for snapshots in self._of.values() for snapshot in snapshots]
            if not held:
                self.counters["disk_full"] += 1  # all of it is being written right now
                return False
            await self._drop(min(held, key=lambda snapshot: snapshot.used))
            self.counters["disk_evictions"] += 1
        return True


# -- blocking parts, for threads ---------------------------------------------------------------------------


def _scan(folder: Path, identity: Identity, counters: Counter[str]) -> list[DiskSnapshot]:
    """Whole snapshots of this engine; leftovers and what can never be used are removed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    probe = folder / f"probe{_PART}"
    probe.write_bytes(b"")  # a read-only folder is told now, not at the first spill
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix == _PART:
            path.unlink()
        elif path.suffix == _SUFFIX:
            try:
                found.append(_index(path, identity))
            except Refused as exc:
                counters[f"refused_{exc.reason}"] += 1
                log.warning("spilled KV refused (%s) and removed: %s", exc.reason, path.name)
                path.unlink()
    return found


def _index(path: Path, identity: Identity) -> DiskSnapshot:
    try:
        status = path.stat()
        with path.open("rb") as file:
            manifest, header_bytes = _read_header(file)
    except OSError as exc:
        raise Refused("unreadable") from exc
    check_identity(manifest, identity)
    tokens = check_manifest(manifest, manifest.key, identity)
    if status.st_size != header_bytes + manifest.payload_bytes:
        raise Refused("truncated" if status.st_size < header_bytes + manifest.payload_bytes else "too_long")
    return DiskSnapshot(manifest.key, tokens, path, status.st_size, status.st_mtime)


def _read_header(file: BinaryIO) -> tuple[Manifest, int]:
    data = b""
    while True:
        more = file.read(_HEADER_GUESS)
        data += more
        decoded = decode_header(data)
        if decoded is not None:
            return decoded
        if not more:
            raise Refused("truncated")


def _write(path: Path, header: bytes, payload: Path, payload_bytes: int) -> None:
    part = path.with_suffix(_PART)
    with part.open("wb") as file, payload.open("rb") as source:
        os.fchmod(file.fileno(), 0o600)
        file.write(header)
        shutil.copyfileobj(source, file, CHUNK_BYTES)
        if file.tell() != len(header) + payload_bytes:
            raise OSError("the payload changed while it was copied")
    part.replace(path)


def _read(path: Path, payload: Path, key: SessionKey, identity: Identity) -> Manifest:
    try:
        with path.open("rb", buffering=0) as file:
            manifest, header_bytes = _read_header(file)
            check_manifest(manifest, key, identity)
            file.seek(header_bytes)
            _copy_checked(file, payload, PayloadCheck(manifest))
        os.utime(path)
    except FileNotFoundError as exc:
        raise Refused("no_snapshot") from exc
    except OSError as exc:
        raise Refused("unreadable") from exc
    return manifest


def _copy_checked(file: BinaryIO, payload: Path, check: PayloadCheck) -> None:
    try:
        sink = payload.open("wb", buffering=0)
    except OSError as exc:
        raise Refused("no_room") from exc
    with sink:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while size := _fill(file, buffer):
            check.check(buffer[:size])
            try:
                sink.write(buffer[:size])
            except OSError as exc:
                raise Refused("no_room") from exc
        check.finish()


def _fill(file: BinaryIO, buffer: memoryview) -> int:
    """Reads until the buffer is full or the file ends: one raw read may be short."""
    total = 0
    while len(buffer) > total:
        size = file.readinto(buffer[total:])  # type: ignore[attr-defined]
        if not size:
            break
        total += size
    return total


def _remove(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
