"""A snapshot between replicas: a stream of chunks that the receiver checks, whole or refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inference.kv import transfer
from inference.kv.envelope import CHUNK_BYTES, SnapshotRefused
from sessions.model.types import SessionKey
from tests.support.engines.kv import IDENTITY, key, snapshot, write_payload

SIZE = 2 * CHUNK_BYTES + 77


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def sent(tmp_path: Path, who: SessionKey) -> bytes:
    manifest, payload = snapshot(who, 700, SIZE)
    chunks = [chunk async for chunk in transfer.stream(write_payload(tmp_path, manifest, payload), manifest)]
    assert all(len(chunk) <= CHUNK_BYTES for chunk in chunks)
    return b"".join(chunks)


async def received(data: bytes, who: SessionKey, target: Path, size: int = 100_000) -> int:
    chunks = pieces(data, size)
    manifest, rest = await transfer.begin(chunks, who, IDENTITY)
    await transfer.receive(chunks, manifest, rest, target)
    return len(manifest.ledger)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:40], "truncated"),
        (lambda data: data[:-1], "truncated"),
        (lambda data: data + b"x", "too_long"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "bad_chunk"),
        (lambda data: b"", "truncated"),
    ],
)
async def test_what_is_not_whole_is_refused(tmp_path: Path, damage: object, reason: str) -> None:
    assert callable(damage)
    data = damage(await sent(tmp_path, key("a")))
    with pytest.raises(SnapshotRefused) as refused:
        await received(data, key("a"), tmp_path / "here")
    assert refused.value.reason == reason
