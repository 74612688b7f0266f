"""Encodes and checks KV snapshots: one format for every engine, tier and peer.

    magic | header length | header: the manifest, msgpack | header's hash | payload, opaque

The manifest says whose KV this is (tenant, session), for what (engine build, model, dtype, layout), which tokens it
covers and what each chunk of the payload must hash to. Everything is checked before a byte is used: what does not match
is refused by a named reason, and a refusal means recompute, never an error (I6).

Chunks are hashed by GMAC under a key that is made from the snapshot's id, with the chunk's index as nonce: at 10 GB/s
it detects flipped, swapped, moved and foreign chunks. It is a checksum: it stops accidents, not forgers, as long as
that key is no secret. What is stored at rest is encrypted around all of this (`encryption.py`), so `key_id` is "" here.

Tokens are bound to tenant and model by a hash chain over blocks of 256: h(i) = H(h(i-1), tokens of block i), where
h(-1) is made from the identity. Two chains that agree at i agree on all tokens before.
"""

from __future__ import annotations

import array
import hashlib
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sessions.model.types import SessionKey, pack_tokens, unpack_tokens

MAGIC: Final = b"SESSKV\x00\x01"
CHUNK_BYTES: Final = 1 << 20
BLOCK_TOKENS: Final = 256
HEADER_BYTES_MAX: Final = 64 << 20
_HASH_BYTES: Final = 16
TAG_BYTES: Final = 16
_LENGTH: Final = struct.Struct("<I")

Reason = Literal[
    "no_snapshot",
    "bad_header",
    "other_version",
    "other_tenant",
    "other_session",
    "other_build",
    "other_model",
    "other_layout",
    "bad_tokens",
    "bad_chunk",
    "truncated",
    "too_long",
    "unreadable",
    "no_room",
    "unknown_key",
    "not_encrypted",
    "keys_away",
    "tier_away",
    "too_late",
    "too_slow",
]


class SnapshotRefused(Exception):
    """Raised for a snapshot that must not be used, with the reason. This is an ordinary outcome: the tokens are
    computed again."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class KvIdentity(msgspec.Struct, frozen=True):
    """The properties that must be equal for KV to fit an engine."""

    build: str
    model_fingerprint: str
    dtype: str
    layout: str


class SnapshotManifest(msgspec.Struct, frozen=True, array_like=True):
    version: int
    snapshot_id: bytes
    tenant: str
    session: str
    identity: KvIdentity
    tokens: bytes  # packed
    chain: bytes  # 16 bytes for each begun block of tokens
    payload_bytes: int
    tags: bytes  # 16 bytes for each begun chunk of the payload
    key_id: str = ""
    scope: bytes = b""  # the `cache_scope` of the run that it was made by

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.tenant, self.session)  # type: ignore[arg-type]  # NewTypes of str

    @property
    def ledger(self) -> array.array[int]:
        return unpack_tokens(self.tokens)


VERSION: Final = 1
_DECODER: Final = msgspec.msgpack.Decoder(SnapshotManifest)


# -- making ----------------------------------------------------------------------------------------------


def make_manifest(
    key: SessionKey,
    identity: KvIdentity,
    tokens: array.array[int],
    snapshot_id: bytes,
    payload_bytes: int,
    tags: bytes,
    scope: bytes = b"",
) -> SnapshotManifest:
    return SnapshotManifest(
        VERSION,
        snapshot_id,
        key.tenant,
        key.session,
        identity,
        pack_tokens(tokens),
        token_chain(key, identity, tokens),
        payload_bytes,
        tags,
        scope=scope,
    )


def encode_header(manifest: SnapshotManifest) -> bytes:
    """Returns all bytes before the payload."""
    body = msgspec.msgpack.encode(manifest)
    head = MAGIC + _LENGTH.pack(len(body)) + body
    return head + _header_hash(head)


def tag_payload(payload: mmap.mmap | bytes, snapshot_id: bytes) -> bytes:
    """Returns the checksums of all chunks of a payload, one after the other."""
    cipher = _cipher(snapshot_id)
    with memoryview(payload) as view:
        return b"".join(
            _tag(cipher, index, view[start : start + CHUNK_BYTES])
            for index, start in enumerate(range(0, len(view), CHUNK_BYTES))
        )


class BlockTags:
    """Makes a checksum for each block of a file, also while the file is not complete. A block's number is part of its
    checksum."""

    def __init__(self, file_id: bytes) -> None:
        self._cipher = _cipher(b"blocks" + file_id)

    def of(self, number: int, block: memoryview | bytes) -> bytes:
        """Returns the checksum of a block, `TAG_BYTES` long."""
        return _tag(self._cipher, number, block)


def tag_file(path: Path, snapshot_id: bytes) -> tuple[int, bytes]:
    """Returns the size of a payload in a file, and the checksums of its chunks (`tag_payload`). Blocking. Raises
    OSError, and ValueError for an empty file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as payload:
        return len(payload), tag_payload(payload, snapshot_id)


def token_chain(key: SessionKey, identity: KvIdentity, tokens: array.array[int]) -> bytes:
    link = hashlib.blake2b(
        msgspec.msgpack.encode((key.tenant, identity.build, identity.model_fingerprint)), digest_size=_HASH_BYTES
    ).digest()
    links = []
    for start in range(0, len(tokens), BLOCK_TOKENS):
        block = pack_tokens(tokens[start : start + BLOCK_TOKENS])
        link = hashlib.blake2b(link + block, digest_size=_HASH_BYTES).digest()
        links.append(link)
    return b"".join(links)


# -- checking --------------------------------------------------------------------------------------------


def decode_header(data: bytes) -> tuple[SnapshotManifest, int] | None:
    """Returns (manifest, its length) from the beginning of a snapshot; None when more bytes are needed.

    Checks that the header is whole and consistent in itself. Raises SnapshotRefused."""
    start = len(MAGIC) + _LENGTH.size
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise SnapshotRefused("other_version" if data[:6] == MAGIC[:6] else "no_snapshot")
    if len(data) < start:
        return None
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    if length > HEADER_BYTES_MAX:
        raise SnapshotRefused("bad_header")
    end = start + length
    if len(data) < end + _HASH_BYTES:
        return None
    if _header_hash(data[:end]) != data[end : end + _HASH_BYTES]:
        raise SnapshotRefused("bad_header")
    try:
        manifest = _DECODER.decode(data[start:end])
    except msgspec.DecodeError as exc:
        raise SnapshotRefused("bad_header") from exc
    if manifest.version != VERSION:
        raise SnapshotRefused("other_version")
    if manifest.key_id:
        raise SnapshotRefused("unknown_key")
    num_chunks = -(-manifest.payload_bytes // CHUNK_BYTES)
    if len(manifest.tags) != num_chunks * _HASH_BYTES or manifest.payload_bytes < 0:
        raise SnapshotRefused("bad_header")
    return manifest, end + _HASH_BYTES


def check_manifest(manifest: SnapshotManifest, key: SessionKey, identity: KvIdentity) -> array.array[int]:
    """Returns the tokens of a manifest, which must be of this session and for this engine. Raises SnapshotRefused."""
    if manifest.tenant != key.tenant:
        raise SnapshotRefused("other_tenant")
    if manifest.session != key.session:
        raise SnapshotRefused("other_session")
    if manifest.identity.build != identity.build:
        raise SnapshotRefused("other_build")
    if manifest.identity.model_fingerprint != identity.model_fingerprint:
        raise SnapshotRefused("other_model")
    if manifest.identity != identity:
        raise SnapshotRefused("other_layout")
    if len(manifest.tokens) % 4:
        raise SnapshotRefused("bad_tokens")
    tokens = manifest.ledger
    if not tokens or token_chain(key, identity, tokens) != manifest.chain:
        raise SnapshotRefused("bad_tokens")
    return tokens


def check_file(path: Path, manifest: SnapshotManifest) -> None:
    """Checks a payload in a file. Blocking. Raises SnapshotRefused."""
    check = PayloadCheck(manifest)
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as payload,
            memoryview(payload) as view,
        ):
            for start in range(0, len(view), CHUNK_BYTES):
                with view[start : start + CHUNK_BYTES] as chunk:
                    check.check(chunk)
    except (OSError, ValueError) as exc:  # mmap calls an empty file a ValueError
        raise SnapshotRefused("unreadable") from exc
    check.finish()


def checked_chunks(path: Path, manifest: SnapshotManifest, end: int) -> Iterator[memoryview]:
    """Yields the first `end` bytes of a payload in a file as chunks, each of which was checked as a whole. Blocking.
    Raises SnapshotRefused.

    The bytes are copies, so a later change of the file does not matter; a chunk is valid until the next one is read."""
    check = PayloadCheck(manifest)
    room = memoryview(bytearray(min(CHUNK_BYTES, manifest.payload_bytes)))
    try:
        with path.open("rb") as file:
            for start in range(0, end, CHUNK_BYTES):
                done = file.readinto(room)
                check.check(room[:done])
                yield room[: min(done, end - start)]
    except OSError as exc:
        raise SnapshotRefused("unreadable") from exc


def check_chunks(data: memoryview, snapshot_id: bytes, tags: bytes, first_chunk: int) -> None:
    """Checks whole chunks that were read from the middle of a payload. Raises SnapshotRefused."""
    cipher = _cipher(snapshot_id)
    for index, start in enumerate(range(0, len(data), CHUNK_BYTES), first_chunk):
        try:
            tag = tags[index * _HASH_BYTES : (index + 1) * _HASH_BYTES]
            cipher.decrypt(_nonce(index), tag, data[start : start + CHUNK_BYTES])
        except (InvalidTag, ValueError) as exc:
            raise SnapshotRefused("bad_chunk") from exc


class PayloadCheck:
    """Checks a payload that comes in pieces of any size, and passes it on in whole, checked chunks."""

    def __init__(self, manifest: SnapshotManifest) -> None:
        self._cipher = _cipher(manifest.snapshot_id)
        self._tags = manifest.tags
        self._left = manifest.payload_bytes
        self._index = 0
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Takes a piece; yields the chunks that it completes. Raises SnapshotRefused at the first chunk that differs
        from the manifest."""
        if not self._buffer and 0 < len(data) == min(CHUNK_BYTES, self._left) and isinstance(data, bytes):
            self.check(data)
            yield data  # as it came: most do
            return
        self._buffer += data
        if len(self._buffer) > self._left:
            raise SnapshotRefused("too_long")
        while self._left and len(self._buffer) >= min(CHUNK_BYTES, self._left):
            chunk = bytes(self._buffer[:CHUNK_BYTES])
            del self._buffer[:CHUNK_BYTES]
            self.check(chunk)
            yield chunk

    def check(self, chunk: bytes | memoryview) -> None:
        """Checks the next chunk, which must be whole."""
        begin = self._index * _HASH_BYTES
        tag = self._tags[begin : begin + _HASH_BYTES]
        if not tag:
            raise SnapshotRefused("too_long")
        expected = min(CHUNK_BYTES, self._left)
        if len(chunk) != expected:
            raise SnapshotRefused("truncated" if len(chunk) < expected else "too_long")
        try:
            self._cipher.decrypt(_nonce(self._index), tag, chunk)
        except InvalidTag as exc:
            raise SnapshotRefused("bad_chunk") from exc
        self._index += 1
        self._left -= len(chunk)

    def finish(self) -> None:
        """Raises SnapshotRefused when a part of the payload is missing."""
        if self._left:
            raise SnapshotRefused("truncated")


# -- inside ----------------------------------------------------------------------------------------------


def _header_hash(head: bytes) -> bytes:
    return hashlib.blake2b(head, digest_size=_HASH_BYTES).digest()


def _cipher(snapshot_id: bytes) -> AESGCM:
    return AESGCM(hashlib.blake2b(snapshot_id, digest_size=32, person=b"sessile-kv").digest())


def _nonce(index: int) -> bytes:
    return index.to_bytes(12, "little")


def _tag(cipher: AESGCM, index: int, chunk: memoryview | bytes) -> bytes:
    return cipher.encrypt(_nonce(index), b"", chunk)  # nothing to encrypt: what is left is the tag
