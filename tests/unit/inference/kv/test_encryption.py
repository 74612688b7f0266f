"""At rest: nothing readable without the key, every change found, and unreadable for good once the key is destroyed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from inference.kv.disk import DiskTier
from inference.kv.encryption import StoredSnapshotReader, store, stored_bytes
from inference.kv.envelope import check_manifest
from inference.tokens import as_tokens
from persistence.keys import MemoryKeyStore
from sessions.model.errors import Unavailable
from sessions.model.types import SessionKey
from sessions.ports import DataKey
from tests.support.engines.kv import IDENTITY, key, make_tiers, payload_of, snapshot, write_payload

pytestmark = pytest.mark.usefixtures("small_chunks")

CHUNK_BYTES = 16 * 1024  # of `small_chunks`
SIZE = 2 * CHUNK_BYTES + 12_345
KEY = DataKey("k1", bytes(range(32)))


def sealed(folder: Path, who: SessionKey = key("a"), data_key: DataKey | None = KEY, salt: str = "") -> bytes:  # noqa: B008
    manifest, payload = snapshot(who, 700, SIZE, salt=salt)
    sink = io.BytesIO()
    store(sink, manifest, write_payload(folder, manifest, payload), data_key)
    assert len(sink.getvalue()) == stored_bytes(manifest, data_key)
    return sink.getvalue()


def read(data: bytes, who: SessionKey, data_key: DataKey | None = KEY) -> bytes:
    stored = StoredSnapshotReader(io.BytesIO(data))
    check_manifest(stored.open(data_key), who, IDENTITY)
    return b"".join(bytes(chunk) for chunk in stored.chunks())


# -- on disk -------------------------------------------------------------------------------------------------


class Away(MemoryKeyStore):
    """A key store whose server can be switched off."""

    away = False

    async def current(self, key: SessionKey) -> DataKey:
        if self.away:
            raise Unavailable("keys_unavailable", "away")
        return await super().current(key)

    async def find(self, key: SessionKey, key_id: str) -> DataKey | None:
        if self.away:
            raise Unavailable("keys_unavailable", "away")
        return await super().find(key, key_id)


async def put(tier: DiskTier, staging: Path, name: str) -> bool:
    manifest, payload = snapshot(key(name), 10, SIZE)
    return await tier.put(manifest, write_payload(staging, manifest, payload))


async def opened(folder: Path, keys: MemoryKeyStore | None) -> DiskTier:
    tier = DiskTier(folder, 1 << 30, IDENTITY, keys)
    await tier.open()
    return tier


async def test_through_the_tiers_only_ciphertext_reaches_the_disk_and_plain_envelopes_the_peer(tmp_path: Path) -> None:
    staging, folder = tmp_path / "staging", tmp_path / "kv"
    staging.mkdir()
    keys = MemoryKeyStore()
    tiers = make_tiers(staging, 1 << 24, DiskTier(folder, 1 << 30, IDENTITY, keys))
    await tiers.open()
    payload = payload_of("x", SIZE)
    assert await tiers.reserve(SIZE)
    path = tiers.host.new_path()
    path.write_bytes(payload)
    tiers.adopt(key("a"), as_tokens(range(700)), path, SIZE, SIZE)
    await tiers.close(5.0)
    (file,) = folder.iterdir()
    assert payload[4096:4128] not in file.read_bytes()
    again = make_tiers(staging, 1 << 24, DiskTier(folder, 1 << 30, IDENTITY, keys))
    await again.open()
    export = await again.export(key("a"), as_tokens(range(900)))
    assert export is not None and export.ledger == as_tokens(range(700))
    other = make_tiers(staging, 1 << 24, None)
    assert await other.import_(key("a"), export.chunks) == 700
    found, shared = other.catalog.find(key("a"), as_tokens(range(700)))
    assert found is not None and shared == 700
    async with other.payload(found) as host:
        assert host.path.read_bytes() == payload
    await other.close(0.0)
    await again.close(0.0)
