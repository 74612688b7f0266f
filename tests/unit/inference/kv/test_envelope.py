"""The envelope: what was damaged, cut, moved or somebody else's is refused by name, in a thousand ways and more."""

from __future__ import annotations

import msgspec
import pytest

from inference.kv.envelope import (
    KvIdentity,
    PayloadCheck,
    SnapshotManifest,
    SnapshotRefused,
    check_manifest,
    decode_header,
    encode_header,
)
from sessions.model.types import SessionKey
from tests.support.engines.kv import IDENTITY, file_of, key, snapshot

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


def test_a_chunk_of_another_snapshot_is_foreign(whole: tuple[SnapshotManifest, bytes]) -> None:
    manifest, payload = whole
    _, other = snapshot(key("a"), 700, SIZE, salt="later")
    mixed = other[:CHUNK_BYTES] + payload[CHUNK_BYTES:]
    with pytest.raises(SnapshotRefused) as refused:
        read(file_of(manifest, mixed), key("a"))
    assert refused.value.reason == "bad_chunk"
    same_bytes, _ = snapshot(key("a"), 701, SIZE)  # another id over the very same payload
    assert same_bytes.tags != manifest.tags


def forged(manifest: SnapshotManifest, **changes: object) -> bytes:
    """A header that is whole, but does not say what it should."""
    return encode_header(msgspec.structs.replace(manifest, **changes))
