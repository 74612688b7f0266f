"""The envelope: what was damaged, cut, moved or somebody else's is refused by name, in a thousand ways and more."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from inference.tokens import as_tokens
from sessions.model.types import SessionKey, pack_tokens
from tests.support.engines.kv import IDENTITY, file_of, key, payload_of, snapshot

pytestmark = pytest.mark.usefixtures("small_chunks")

CHUNK_BYTES = 16 * 1024  # of `small_chunks`
SIZE = 2 * CHUNK_BYTES + 12_345


def read(data: bytes, who: SessionKey, identity: KvIdentity = IDENTITY, piece: int = 300_000) -> bytes:
    """What a reader of a whole snapshot gets; Refused where it must not."""
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


@given(st.integers(1, 3 * CHUNK_BYTES))
def test_what_is_right_is_given_back_in_pieces_of_any_size(piece: int) -> None:
    manifest, payload = snapshot(key("a"), 700, SIZE)
    assert read(file_of(manifest, payload), key("a"), piece=max(piece, 5000)) == payload


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_payloads_of_every_length_round_trip(size: int) -> None:
    manifest, payload = snapshot(key("a"), 1, size)
    assert read(file_of(manifest, payload), key("a")) == payload


@pytest.mark.parametrize("rounds", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_faults_are_all_detected(whole: tuple[SnapshotManifest, bytes], rounds: int) -> None:
    chance = random.Random(20261121)
    manifest, payload = whole
    good = file_of(manifest, payload)
    header = len(good) - len(payload)
    reasons: set[str] = set()
    for round_ in range(rounds):
        bad = bytearray(good)
        match round_ % 6:
            case 0:  # a flipped bit, anywhere; half of them in the header, which is small
                at = chance.randrange(header if round_ % 12 else len(bad))
                bad[at] ^= 1 << chance.randrange(8)
            case 1:  # cut
                del bad[chance.randrange(len(bad)) :]
            case 2:  # a hole of zeros, as a torn write leaves
                at, length = chance.randrange(len(bad)), chance.randrange(1, 8192)
                bad[at : at + length] = bytes(len(bad[at : at + length]))
            case 3:  # bytes lost in the middle
                at = chance.randrange(len(bad))
                del bad[at : at + chance.randrange(1, 4096)]
            case 4:  # bytes doubled
                at = chance.randrange(len(bad))
                bad[at:at] = bad[at : at + chance.randrange(1, 4096)] or b"x"
            case 5:  # two chunks swapped
                first, second = header, header + CHUNK_BYTES
                bad[first : first + CHUNK_BYTES], bad[second : second + CHUNK_BYTES] = (
                    bad[second : second + CHUNK_BYTES],
                    bad[first : first + CHUNK_BYTES],
                )
        if bytes(bad) == good:
            continue
        with pytest.raises(SnapshotRefused) as refused:
            read(bytes(bad), key("a"))
        reasons.add(refused.value.reason)
    assert {"bad_header", "bad_chunk", "truncated"} <= reasons


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
    with pytest.raises(SnapshotRefused) as refused:
        read(file_of(*whole), who, identity)
    assert refused.value.reason == reason


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
        with pytest.raises(SnapshotRefused) as refused:
            read(forged(manifest, **changes) + payload, who)
        assert refused.value.reason == "bad_tokens"


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
        with pytest.raises(SnapshotRefused) as refused:
            read(forged(manifest, **changes) + payload, key("a"))
        assert refused.value.reason == reason
    for data, reason in (
        (b"GGUF" + bytes(100), "no_snapshot"),
        (b"SESSKV\x00\x02" + bytes(100), "other_version"),
        (MAGIC + b"\xff\xff\xff\xff", "bad_header"),
    ):
        with pytest.raises(SnapshotRefused) as refused:
            decode_header(data)
        assert refused.value.reason == reason


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
    with pytest.raises(SnapshotRefused) as refused:
        check_file(path, manifest)
    assert refused.value.reason == "unreadable"
