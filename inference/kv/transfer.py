"""Snapshots between replicas: the envelope as a stream of chunks of at most 1 MiB, checked by whoever takes it in.

It travels unencrypted inside the link between replicas, which is authenticated and may be TLS; at rest each side
encrypts under the session's key by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import BinaryIO

from inference.kv.envelope import (
    CHUNK_BYTES,
    KvIdentity,
    PayloadCheck,
    SnapshotManifest,
    SnapshotRefused,
    check_manifest,
    decode_header,
    encode_header,
)
from sessions.model.types import SessionKey


async def stream(payload: Path, manifest: SnapshotManifest) -> AsyncGenerator[bytes, None]:
    """Yields a snapshot as chunks of its envelope. `payload` is a file that must not change meanwhile. Raises
    SnapshotRefused if it cannot be read."""
    header = encode_header(manifest)
    for start in range(0, len(header), CHUNK_BYTES):
        yield header[start : start + CHUNK_BYTES]
    try:
        with await asyncio.to_thread(payload.open, "rb") as file:
            while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield data
    except OSError as exc:
        raise SnapshotRefused("unreadable") from exc


async def begin(chunks: AsyncIterator[bytes], key: SessionKey, identity: KvIdentity) -> tuple[SnapshotManifest, bytes]:
    """Reads the header from `chunks`. Returns the manifest, and the payload's bytes that came in the same chunk. Raises
    SnapshotRefused."""
    head = b""
    async for chunk in chunks:
        head += chunk
        decoded = decode_header(head)
        if decoded is not None:
            manifest, header_bytes = decoded
            check_manifest(manifest, key, identity)
            return manifest, head[header_bytes:]
    raise SnapshotRefused("truncated")


async def receive(chunks: AsyncIterator[bytes], manifest: SnapshotManifest, rest: bytes, path: Path) -> None:
    """Writes the checked payload to the file `path`, which the caller must remove if this raises SnapshotRefused.
    `rest`: the payload's bytes that came with the header."""
    check = PayloadCheck(manifest)
    with await asyncio.to_thread(_create, path) as file:
        for part in check.feed(rest):
            await _append(file, part)
        async for chunk in chunks:
            for part in check.feed(chunk):
                await _append(file, part)
        check.finish()


def _create(path: Path) -> BinaryIO:
    """Opens a new file. Blocking. Raises SnapshotRefused."""
    try:
        return path.open("wb", buffering=0)
    except OSError as exc:
        raise SnapshotRefused("no_room") from exc


async def _append(file: BinaryIO, part: bytes) -> None:
    """Writes a part to the file. Raises SnapshotRefused."""
    writing = asyncio.ensure_future(asyncio.to_thread(file.write, part))
    try:
        await asyncio.shield(writing)
    except OSError as exc:
        raise SnapshotRefused("no_room") from exc
    except asyncio.CancelledError:
        await asyncio.wait([writing])  # the file must not be closed under the thread
        raise
