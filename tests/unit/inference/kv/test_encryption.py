"""At rest: nothing readable without the key, every change found, and unreadable for good once the key is destroyed."""

from __future__ import annotations

import io
import random
import shutil
from pathlib import Path

import pytest

from inference.kv.disk import DiskTier
from inference.kv.encryption import SEALED, StoredSnapshotReader, store, stored_bytes
from inference.kv.envelope import SnapshotRefused, check_manifest
from persistence.keys import MemoryKeyStore
from sessions.model.errors import Unavailable
from sessions.model.types import SessionKey
from sessions.ports import DataKey
from tests.support.engines.kv import IDENTITY, key, payload_of, snapshot, write_payload

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


def test_neither_tokens_nor_payload_can_be_read_without_the_key(tmp_path: Path) -> None:
    manifest, payload = snapshot(key("a"), 700, SIZE)
    data = sealed(tmp_path)
    assert manifest.tokens[:16] not in data and manifest.chain[:16] not in data
    assert all(payload[at : at + 16] not in data for at in range(0, SIZE, 4096))
    for wrong in (None, DataKey("k2", KEY.secret), DataKey("k1", bytes(32))):
        with pytest.raises(SnapshotRefused) as refused:
            read(data, key("a"), wrong)
        assert refused.value.reason in ("unknown_key", "bad_header")


@pytest.mark.parametrize("rounds", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_faults_are_all_detected(tmp_path: Path, rounds: int) -> None:
    """Bits, cuts, holes, losses, doublings, chunks swapped and taken from others, tenants and sessions exchanged."""
    chance = random.Random(20261121)
    good = sealed(tmp_path)
    later = sealed(tmp_path, salt="later")
    others = [sealed(tmp_path, key("b")), sealed(tmp_path, key("a", tenant="u")), sealed(tmp_path, data_key=None)]
    first = len(good) - SIZE - 3 * 16  # of the payload
    step = CHUNK_BYTES + 16
    reasons: set[str] = set()
    for round_ in range(rounds):
        bad = bytearray(good)
        at = chance.randrange(first if round_ % 3 else len(bad))
        match round_ % 10:
            case 0 | 1:
                bad[at] ^= 1 << chance.randrange(8)
            case 2:
                del bad[chance.randrange(len(bad)) :]
            case 3:
                del bad[first + step * chance.randrange(3) :]  # cut exactly between chunks
            case 4:
                length = chance.randrange(1, 8192)
                bad[at : at + length] = bytes(len(bad[at : at + length]))
            case 5:
                del bad[at : at + chance.randrange(1, 4096)]
            case 6:
                bad[at:at] = bad[at : at + chance.randrange(1, 4096)] or b"x"
            case 7:
                bad[first : first + step], bad[first + step : first + 2 * step] = (
                    bad[first + step : first + 2 * step],
                    bad[first : first + step],
                )
            case 8:
                number = chance.randrange(2)  # a chunk of the session's own later snapshot, at its own place
                begin = first + number * step
                bad[begin : begin + step] = later[begin : begin + step]
            case 9:
                bad[:] = chance.choice(others)
        if bytes(bad) == good:
            continue
        with pytest.raises(SnapshotRefused) as refused:
            read(bytes(bad), key("a"))
        reasons.add(refused.value.reason)
    assert {"bad_header", "bad_chunk", "truncated", "other_session", "other_tenant", "not_encrypted"} <= reasons


def test_a_payload_that_was_damaged_before_is_not_sealed_in(tmp_path: Path) -> None:
    manifest, payload = snapshot(key("a"), 10, SIZE)
    for bad in (payload[:-1], payload + b"x", b"", bytes([payload[0] ^ 1]) + payload[1:]):
        with pytest.raises(SnapshotRefused):
            store(io.BytesIO(), manifest, write_payload(tmp_path, manifest, bad), KEY)


@pytest.mark.parametrize("data_key", [KEY, None], ids=["sealed", "plain"])
@pytest.mark.parametrize("size", [1, CHUNK_BYTES, SIZE])
def test_one_byte_more_or_less_is_refused(tmp_path: Path, size: int, data_key: DataKey | None) -> None:
    manifest, payload = snapshot(key("a"), 700, size)
    sink = io.BytesIO()
    store(sink, manifest, write_payload(tmp_path, manifest, payload), data_key)
    good = sink.getvalue()
    assert read(good, key("a"), data_key) == payload
    for bad in (good[:-1], good + b"x", good + bytes(CHUNK_BYTES)):
        with pytest.raises(SnapshotRefused) as refused:
            read(bad, key("a"), data_key)
        assert refused.value.reason in ("truncated", "too_long", "bad_chunk")


def test_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SnapshotRefused) as refused:
        StoredSnapshotReader(io.BytesIO(b"SESSKS\x00\x02" + sealed(tmp_path)[len(SEALED) :]))
    assert refused.value.reason == "other_version"


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


async def test_a_copied_file_is_unreadable_once_the_key_is_destroyed(tmp_path: Path) -> None:
    keys, folder, copy = MemoryKeyStore(), tmp_path / "kv", tmp_path / "copy"
    tier = await opened(folder, keys)
    assert await put(tier, tmp_path, "a") and await put(tier, tmp_path, "b")
    shutil.copytree(folder, copy)
    assert tier.bytes == sum(path.stat().st_size for path in folder.iterdir())
    again = await opened(copy, keys)  # with the key, the copy is as good as the file
    (entry,) = again.of(key("a"))
    await again.fetch(entry, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == payload_of(f"{key('a')}", SIZE)
    await tier.erase(key("a"))
    await keys.destroy(key("a"))
    (entry,) = again.of(key("a"))
    with pytest.raises(SnapshotRefused) as refused:
        await again.fetch(entry, tmp_path / "back")
    assert refused.value.reason == "unknown_key"
    third = await opened(copy, keys)
    assert third.of(key("a")) == [] and third.of(key("b"))


async def test_files_of_the_other_kind_are_removed(tmp_path: Path) -> None:
    plain = await opened(tmp_path / "kv", None)
    assert await put(plain, tmp_path, "a")
    encrypted = await opened(tmp_path / "kv", MemoryKeyStore())
    assert encrypted.num_snapshots == 0 and encrypted.counters["refused_not_encrypted"] == 1
    assert await put(encrypted, tmp_path, "a")
    plain = await opened(tmp_path / "kv", None)
    assert plain.num_snapshots == 0 and list((tmp_path / "kv").iterdir()) == []


async def test_while_the_key_store_is_away_nothing_is_written_or_lost(tmp_path: Path) -> None:
    keys = Away()
    tier = await opened(tmp_path / "kv", keys)
    assert await put(tier, tmp_path, "a")
    keys.away = True
    assert not await put(tier, tmp_path, "b") and tier.counters["disk_keys_away"] == 1
    (entry,) = tier.of(key("a"))
    with pytest.raises(SnapshotRefused) as refused:
        await tier.fetch(entry, tmp_path / "back")
    assert refused.value.reason == "keys_away" and tier.of(key("a")) == [entry]
    with pytest.raises(Unavailable):
        await opened(tmp_path / "kv", keys)
    assert len(list((tmp_path / "kv").glob("*.kv"))) == 1
    keys.away = False
    await tier.fetch(entry, tmp_path / "back")
