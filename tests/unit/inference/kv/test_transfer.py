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


async def test_another_sessions_snapshot_and_a_full_folder_are_refused(tmp_path: Path) -> None:
    data = await sent(tmp_path, key("a"))
    for who, target, reason in (
        (key("b"), tmp_path / "here", "other_session"),
        (key("a"), tmp_path / "missing" / "here", "no_room"),
    ):
        with pytest.raises(SnapshotRefused) as refused:
            await received(data, who, target)
        assert refused.value.reason == reason


async def test_a_payload_that_has_vanished_ends_the_stream(tmp_path: Path) -> None:
    manifest, _ = snapshot(key("a"), 10, SIZE)
    with pytest.raises(SnapshotRefused) as refused:
        _ = [chunk async for chunk in transfer.stream(tmp_path / "nothing", manifest)]
    assert refused.value.reason == "unreadable"
