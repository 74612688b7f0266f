"""Snapshots at rest and between replicas: whole, of their session and readable with its key, or refused by name."""

from __future__ import annotations

import io
import os
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.kv import transfer
from inference.kv.block_checksums import add_checksums, checksums_of, count_intact
from inference.kv.cold_tier import data_key_for
from inference.kv.disk import DiskTier
from inference.kv.encryption import SEALED, StoredHead, StoredSnapshotReader, store, stored_bytes
from inference.kv.envelope import (
    BLOCK_TOKENS,
    MAGIC,
    KvIdentity,
    PayloadCheck,
    SnapshotManifest,
    SnapshotRefused,
    check_file,
    check_manifest,
    decode_header,
    encode_header,
    make_manifest,
    tag_file,
    token_chain,
)
from inference.kv.envelope import CHUNK_BYTES as PLAIN_CHUNK_BYTES
from inference.tokens import as_tokens
from persistence.keys import MemoryKeyStore
from sessions.model.errors import Unavailable
from sessions.model.types import SessionKey, pack_tokens
from sessions.ports import DataKey
from tests.support.engines.kv import IDENTITY, file_of, key, make_tiers, payload_of, snapshot, spill, write_payload

pytestmark = pytest.mark.usefixtures("small_chunks")

# -- envelope
CHUNK_BYTES = 16 * 1024  # of `small_chunks`
SIZE = 2 * CHUNK_BYTES + 12_345


def read(data: bytes, who: SessionKey, identity: KvIdentity = IDENTITY, piece: int = 300_000) -> bytes:
    """Returns the payload that a reader of a whole snapshot gets. Raises SnapshotRefused."""
    decoded = decode_header(data)
    if decoded is None:
        raise SnapshotRefused("truncated")
    manifest, at = decoded
    check_manifest(manifest, who, identity)
    check = PayloadCheck(manifest)
    out: list[bytes] = []
    for start in range(at, len(data), piece):
        out += check.feed(data[start : start + piece])
    check.finish()
    return b"".join(out)


@pytest.fixture(scope="module")
def whole() -> tuple[SnapshotManifest, bytes]:
    return snapshot(key("a"), 700, SIZE)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, SIZE])
@pytest.mark.parametrize("piece", [5_000, CHUNK_BYTES, 300_000])
def test_payloads_of_every_length_come_back_from_pieces_of_any_size(size: int, piece: int) -> None:
    manifest, payload = snapshot(key("a"), 700, size)
    assert read(file_of(manifest, payload), key("a"), piece=piece) == payload


def damaged(good: bytes, first: int, step: int, kind: int, chance: random.Random) -> bytes:
    """Returns a snapshot with one fault; its chunks of `step` bytes begin at `first`."""
    bad = bytearray(good)
    at = chance.randrange(first if chance.randrange(3) else len(bad))  # the head is small, and mostly hit
    match kind:
        case 0:
            bad[at] ^= 1 << chance.randrange(8)
        case 1:
            del bad[chance.randrange(len(bad)) :]
        case 2:
            del bad[first + step * chance.randrange(3) :]  # cut exactly between chunks
        case 3:  # a hole of zeros, as a torn write leaves
            length = chance.randrange(1, 8192)
            bad[at : at + length] = bytes(len(bad[at : at + length]))
        case 4:
            del bad[at : at + chance.randrange(1, 4096)]
        case 5:
            bad[at:at] = bad[at : at + chance.randrange(1, 4096)] or b"x"
        case 6:
            one, other = bad[first : first + step], bad[first + step : first + 2 * step]
            bad[first : first + 2 * step] = other + one
    return bytes(bad)


def mixed(good: bytes, later: bytes, first: int, step: int, number: int) -> bytes:
    """Returns a snapshot with one chunk of a later one of its session, at that chunk's own place."""
    begin = first + number * step
    return good[:begin] + later[begin : begin + step] + good[begin + step :]


@pytest.mark.parametrize("rounds", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_faults_are_all_detected(rounds: int) -> None:
    chance = random.Random(20261121)
    good, later = (file_of(*snapshot(key("a"), 700, SIZE, salt=salt)) for salt in ("", "later"))
    first = len(good) - SIZE
    reasons: set[str] = set()
    for round_ in range(rounds):
        fault = round_ % 8
        bad = mixed(good, later, first, CHUNK_BYTES, chance.randrange(2))
        if fault < 7:
            bad = damaged(good, first, CHUNK_BYTES, fault, chance)
        if bad == good:
            continue
        with pytest.raises(SnapshotRefused) as refused:
            read(bad, key("a"))
        reasons.add(refused.value.reason)
        assert fault < 7 or refused.value.reason == "bad_chunk"
    assert {"bad_header", "bad_chunk", "truncated"} <= reasons


def test_the_same_payload_has_other_tags_in_another_snapshot() -> None:
    assert snapshot(key("a"), 701, SIZE)[0].tags != snapshot(key("a"), 700, SIZE)[0].tags


def forged(manifest: SnapshotManifest, **changes: object) -> bytes:
    """A header that is whole, but does not say what it should."""
    return encode_header(msgspec.structs.replace(manifest, **changes))


@pytest.mark.parametrize(
    ("who", "identity", "reason"),
    [
        (key("b"), IDENTITY, "other_session"),
        (key("a", tenant="u"), IDENTITY, "other_tenant"),
        (key("a"), KvIdentity("engine/2", "model-1", "f16", "slots"), "other_build"),
        (key("a"), KvIdentity("engine/1", "model-2", "f16", "slots"), "other_model"),
        (key("a"), KvIdentity("engine/1", "model-1", "q8", "slots"), "other_layout"),
        (key("a"), KvIdentity("engine/1", "model-1", "f16", "blocks"), "other_layout"),
    ],
)
def test_what_is_not_ours_is_refused_by_name(
    whole: tuple[SnapshotManifest, bytes], who: SessionKey, identity: KvIdentity, reason: str
) -> None:
    with pytest.raises(SnapshotRefused, match=rf"^{reason}$"):
        read(file_of(*whole), who, identity)


def test_tokens_that_do_not_belong_to_their_chain_are_refused(whole: tuple[SnapshotManifest, bytes]) -> None:
    manifest, payload = whole
    tokens = manifest.ledger
    tokens[600] += 1
    for changes in (
        {"tokens": pack_tokens(tokens)},
        {"tokens": manifest.tokens[:-4]},
        {"tokens": manifest.tokens[:-1]},
        {"tokens": b"", "chain": b""},
        {"chain": manifest.chain[:-16]},
        {"tenant": "u"},  # the chain is the tenant's: renaming the owner does not make it his
    ):
        who = key("a", tenant="u") if "tenant" in changes else key("a")
        with pytest.raises(SnapshotRefused, match=r"^bad_tokens$"):
            read(forged(manifest, **changes) + payload, who)


def test_headers_that_lie_about_themselves_are_refused(whole: tuple[SnapshotManifest, bytes]) -> None:
    manifest, payload = whole
    for changes, reason in (
        ({"version": 2}, "other_version"),
        ({"key_id": "k1"}, "unknown_key"),
        ({"tags": manifest.tags[:-16]}, "bad_header"),
        ({"payload_bytes": -1}, "bad_header"),
        ({"payload_bytes": manifest.payload_bytes + 1}, "truncated"),
        ({"payload_bytes": manifest.payload_bytes - 1}, "too_long"),
    ):
        with pytest.raises(SnapshotRefused, match=rf"^{reason}$"):
            read(forged(manifest, **changes) + payload, key("a"))
    for data, reason in (
        (b"GGUF" + bytes(100), "no_snapshot"),
        (b"SESSKV\x00\x02" + bytes(100), "other_version"),
        (MAGIC + b"\xff\xff\xff\xff", "bad_header"),
    ):
        with pytest.raises(SnapshotRefused, match=rf"^{reason}$"):
            decode_header(data)


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_stumble(data: bytes) -> None:
    for start in (b"", MAGIC):
        try:
            decode_header(start + data)
        except SnapshotRefused:
            continue


@given(st.lists(st.integers(0, 5), max_size=600), st.lists(st.integers(0, 5), max_size=600))
def test_chains_agree_exactly_as_far_as_whole_blocks_do(left: list[int], right: list[int]) -> None:
    one = token_chain(key("a"), IDENTITY, as_tokens(left))
    two = token_chain(key("b"), IDENTITY, as_tokens(right))
    for block in range(min(len(one), len(two)) // 16):
        end = (block + 1) * BLOCK_TOKENS
        same = left[:end] == right[:end]
        assert (one[: (block + 1) * 16] == two[: (block + 1) * 16]) is same


def test_chains_of_tenants_and_models_never_agree() -> None:
    tokens = as_tokens(range(300))
    chains = {
        token_chain(key("a", tenant), KvIdentity("e", model, "f16", "x"), tokens)
        for tenant in ("t", "u")
        for model in ("m", "n")
    }
    assert len(chains) == 4


def test_files_are_tagged_and_checked_like_streams(tmp_path: Path) -> None:
    path = tmp_path / "payload"
    path.write_bytes(payload_of("x", SIZE))
    size, tags = tag_file(path, b"i" * 16)
    manifest = make_manifest(key("a"), IDENTITY, as_tokens([1, 2]), b"i" * 16, size, tags)
    check_file(path, manifest)
    for damage in (b"", b"\0" * SIZE, path.read_bytes()[:-1], path.read_bytes() + b"x"):
        path.write_bytes(damage)
        with pytest.raises(SnapshotRefused):
            check_file(path, manifest)
    path.unlink()
    with pytest.raises(SnapshotRefused, match=r"^unreadable$"):
        check_file(path, manifest)


# -- encryption
KEY = DataKey("k1", bytes(range(32)))


def sealed(folder: Path, who: SessionKey = key("a"), data_key: DataKey | None = KEY, salt: str = "") -> bytes:  # noqa: B008
    manifest, payload = snapshot(who, 700, SIZE, salt=salt)
    sink = io.BytesIO()
    store(sink, manifest, write_payload(folder, manifest, payload), data_key)
    assert len(sink.getvalue()) == stored_bytes(manifest, data_key)
    return sink.getvalue()


def read_stored(data: bytes, who: SessionKey, data_key: DataKey | None = KEY) -> bytes:
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
            read_stored(data, key("a"), wrong)
        assert refused.value.reason in ("unknown_key", "bad_header")


@pytest.mark.parametrize("rounds", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_faults_at_rest_are_all_detected(tmp_path: Path, rounds: int) -> None:
    """Refuses the same faults, and chunks, tenants, sessions and kinds of files that were exchanged."""
    chance = random.Random(20261121)
    good, later = sealed(tmp_path), sealed(tmp_path, salt="later")
    others = [sealed(tmp_path, key("b")), sealed(tmp_path, key("a", tenant="u")), sealed(tmp_path, data_key=None)]
    first, step = len(good) - SIZE - 3 * 16, CHUNK_BYTES + 16
    reasons: set[str] = set()
    for round_ in range(rounds):
        match round_ % 9:
            case 7:
                bad = mixed(good, later, first, step, chance.randrange(2))
            case 8:
                bad = chance.choice(others)
            case fault:
                bad = damaged(good, first, step, fault, chance)
        if bad == good:
            continue
        with pytest.raises(SnapshotRefused) as refused:
            read_stored(bad, key("a"))
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
    assert read_stored(good, key("a"), data_key) == payload
    for bad in (good[:-1], good + b"x", good + bytes(CHUNK_BYTES)):
        with pytest.raises(SnapshotRefused) as refused:
            read_stored(bad, key("a"), data_key)
        assert refused.value.reason in ("truncated", "too_long", "bad_chunk")


def test_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SnapshotRefused, match=r"^other_version$"):
        StoredSnapshotReader(io.BytesIO(b"SESSKS\x00\x02" + sealed(tmp_path)[len(SEALED) :]))


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
    with pytest.raises(SnapshotRefused, match=r"^unknown_key$"):
        await again.fetch(entry, tmp_path / "back")
    third = await opened(copy, keys)
    assert third.of(key("a")) == [] and third.of(key("b"))


async def test_files_of_the_other_kind_are_removed(tmp_path: Path) -> None:
    plain = await opened(tmp_path / "kv", None)
    assert await put(plain, tmp_path, "a")
    encrypted = await opened(tmp_path / "kv", MemoryKeyStore())
    assert len(encrypted) == 0 and encrypted.counters["refused_not_encrypted"] == 1
    assert await put(encrypted, tmp_path, "a")
    plain = await opened(tmp_path / "kv", None)
    assert len(plain) == 0 and list((tmp_path / "kv").iterdir()) == []


async def test_while_the_key_store_is_away_nothing_is_written_or_lost(tmp_path: Path) -> None:
    keys = Away()
    tier = await opened(tmp_path / "kv", keys)
    assert await put(tier, tmp_path, "a")
    keys.away = True
    assert not await put(tier, tmp_path, "b") and tier.counters["disk_keys_away"] == 1
    (entry,) = tier.of(key("a"))
    with pytest.raises(SnapshotRefused, match=r"^keys_away$"):
        await tier.fetch(entry, tmp_path / "back")
    assert tier.of(key("a")) == [entry]
    with pytest.raises(Unavailable):
        await opened(tmp_path / "kv", keys)
    assert len(list((tmp_path / "kv").glob("*.kv"))) == 1
    keys.away = False
    await tier.fetch(entry, tmp_path / "back")


# -- transfer
TRANSFER_SIZE = 2 * PLAIN_CHUNK_BYTES + 77


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def sent(tmp_path: Path, who: SessionKey) -> bytes:
    manifest, payload = snapshot(who, 700, TRANSFER_SIZE)
    chunks = [chunk async for chunk in transfer.stream(write_payload(tmp_path, manifest, payload), manifest)]
    assert all(len(chunk) <= PLAIN_CHUNK_BYTES for chunk in chunks)
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
        with pytest.raises(SnapshotRefused, match=rf"^{reason}$"):
            await received(data, who, target)


async def test_a_payload_that_has_vanished_ends_the_stream(tmp_path: Path) -> None:
    manifest, _ = snapshot(key("a"), 10, TRANSFER_SIZE)
    with pytest.raises(SnapshotRefused, match=r"^unreadable$"):
        _ = [chunk async for chunk in transfer.stream(tmp_path / "nothing", manifest)]


# -- block checksums
BLOCK = 64  # bytes of all ranks


def block_of(index: int, rank: int, ranks: int) -> bytes:
    return bytes([index, rank]) * (BLOCK // ranks // 2)


def write(path: Path, first: int, count: int, ranks: int, *, whole: bool = True) -> None:
    with path.open("r+b" if path.exists() else "wb") as file:
        file.seek(first * BLOCK)
        for index in range(first, first + count):
            file.write(b"".join(block_of(index, rank, ranks) for rank in range(ranks)))
    for rank in range(ranks if whole else 0):
        blocks = [memoryview(block_of(index, rank, ranks)) for index in range(first, first + count)]
        add_checksums(path, first, blocks, rank, ranks)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / f"{os.urandom(16).hex()}.slot"


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_has_a_checksum_counts_and_nothing_behind_it(path: Path, ranks: int) -> None:
    write(path, 3, 4, ranks)
    write(path, 7, 2, ranks)
    write(path, 9, 3, ranks, whole=False)
    assert count_intact(path, 3, 20, BLOCK, ranks) == 9
    assert count_intact(path, 3, 8, BLOCK, ranks) == 8
    assert count_intact(path, 3, 3, BLOCK, ranks) == 3


def test_a_block_of_which_one_rank_is_missing_does_not_count(path: Path) -> None:
    write(path, 0, 4, 2, whole=False)
    for rank, count in ((0, 4), (1, 2)):
        add_checksums(path, 0, [memoryview(block_of(index, rank, 2)) for index in range(count)], rank, 2)
    assert count_intact(path, 0, 4, BLOCK, 2) == 2


@pytest.mark.parametrize("damage", ["a bit", "swapped", "cut", "checksum cut", "hole"])
def test_what_is_not_what_was_written_ends_it(path: Path, damage: str) -> None:
    write(path, 0, 6, 1)
    data = bytearray(path.read_bytes())
    match damage:
        case "a bit":
            data[4 * BLOCK + 5] ^= 1
        case "swapped":
            data[4 * BLOCK : 6 * BLOCK] = data[5 * BLOCK :] + data[4 * BLOCK : 5 * BLOCK]
        case "cut":
            del data[5 * BLOCK - 1 :]
        case "checksum cut":
            os.truncate(checksums_of(path), 4 * 16 + 15)
        case "hole":
            write(path, 9, 1, 1)
            data = bytearray(path.read_bytes())
    path.write_bytes(data)
    assert count_intact(path, 0, 10, BLOCK, 1) == (6 if damage == "hole" else 4)


def test_what_is_not_there_does_not_count(path: Path) -> None:
    assert count_intact(path, 2, 5, BLOCK, 1) == 2
    write(path, 2, 3, 1)
    path.unlink()
    assert count_intact(path, 2, 5, BLOCK, 1) == 2


# -- cold tier
def head_of(key_id: str) -> StoredHead:
    return StoredHead("t", "a", key_id, bytes(16), 10, 10)


async def test_a_snapshot_is_opened_by_its_own_key_or_refused_with_the_reason() -> None:
    keys, away = MemoryKeyStore(), Away()
    away.away = True
    made = await keys.current(key("a"))
    assert await data_key_for(None, None) is None
    assert await data_key_for(keys, head_of(made.id)) == made
    for key_store, head, reason in (
        (None, head_of(made.id), "unknown_key"),
        (keys, None, "not_encrypted"),
        (keys, head_of("destroyed"), "unknown_key"),
        (away, head_of(made.id), "keys_away"),
    ):
        with pytest.raises(SnapshotRefused, match=rf"^{reason}$"):
            await data_key_for(key_store, head)


async def test_through_the_tiers_only_ciphertext_reaches_the_disk_and_plain_envelopes_the_peer(tmp_path: Path) -> None:
    staging, folder = tmp_path / "staging", tmp_path / "kv"
    staging.mkdir()
    keys = MemoryKeyStore()
    tiers = make_tiers(staging, 1 << 24, DiskTier(folder, 1 << 30, IDENTITY, keys))
    await tiers.open()
    payload = payload_of("x", SIZE)
    assert await spill(tiers, key("a"), range(700), payload=payload)
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
    with pytest.raises(SnapshotRefused, match=rf"^{reason}$"):
        await received(data, key("a"), tmp_path / "here")
