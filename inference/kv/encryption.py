"""Encrypts snapshots at rest: what leaves this machine's memory is sealed, its tokens included.

    magic | length | head: whose it is and under which key, msgpack | sealed header | sealed chunk | sealed chunk ...

Inside is the envelope as it is (`envelope.py`): its header as one message, its payload in the same chunks of 1 MiB,
each AES-256-GCM under a key that is made from the session's data key and everything in the head, a fresh salt among it.
So no nonce is ever used twice, chunks cannot be moved, and a head that was changed opens nothing. Only tenant, session,
lengths and the key's id can be read without the key; once that is destroyed, this is true of every copy.

Without a key store the envelope is stored plain; each kind refuses the other. Everything here blocks and is for
threads.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from inference.kv.envelope import (
    CHUNK_BYTES,
    HEADER_BYTES_MAX,
    MAGIC,
    PayloadCheck,
    SnapshotManifest,
    SnapshotRefused,
    decode_header,
    encode_header,
)
from sessions.model.types import SessionId, SessionKey, TenantId
from sessions.ports import DataKey

SEALED: Final = b"SESSKS\x00\x01"
TAG_BYTES: Final = 16
_LENGTH: Final = struct.Struct("<I")
_HEAD_BYTES_MAX: Final = 1 << 16
_HEADER_GUESS: Final = 64 << 10


class StoredHead(msgspec.Struct, frozen=True, array_like=True):
    """The plain-text head of an encrypted snapshot."""

    tenant: str
    session: str
    key_id: str
    salt: bytes
    header_bytes: int
    payload_bytes: int

    @property
    def key(self) -> SessionKey:
        return SessionKey(TenantId(self.tenant), SessionId(self.session))

    @property
    def rest_bytes(self) -> int:
        """How many bytes follow the head."""
        num_chunks = -(-self.payload_bytes // CHUNK_BYTES)
        return self.header_bytes + self.payload_bytes + TAG_BYTES * (1 + num_chunks)


class ByteSource(Protocol):
    """A file that is read from its beginning."""

    def read(self, size: int, /) -> bytes: ...
    def readinto(self, buffer: memoryview, /) -> int | None: ...


class ByteSink(Protocol):
    def write(self, data: bytes | memoryview, /) -> object:
        """Writes the data, which may change after the call."""
        ...


# -- writing ---------------------------------------------------------------------------------------------


def stored_bytes(manifest: SnapshotManifest, data_key: DataKey | None) -> int:
    """Returns how many bytes a stored snapshot takes."""
    header = encode_header(manifest)
    if data_key is None:
        return len(header) + manifest.payload_bytes
    head = _head_of(manifest, data_key, bytes(16), len(header))
    return len(_encode(head)) + head.rest_bytes


def store(sink: ByteSink, manifest: SnapshotManifest, payload: Path, data_key: DataKey | None) -> None:
    """Writes a snapshot whose payload lies in a file. Checks the payload meanwhile, so that damage is not sealed in.

    Raises OSError, and SnapshotRefused for a payload that is not what the manifest says."""
    header = encode_header(manifest)
    if data_key is None:
        sink.write(header)
        cipher = None
    else:
        head = _head_of(manifest, data_key, os.urandom(16), len(header))
        prefix = _encode(head)
        cipher = _cipher(data_key, prefix)
        sink.write(prefix)
        sink.write(cipher.encrypt(_nonce(0), header, None))
    check = PayloadCheck(manifest)
    if manifest.payload_bytes:
        try:
            with (
                payload.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as view,
            ):
                room = memoryview(bytearray(min(CHUNK_BYTES, len(view)) + TAG_BYTES))
                for start in range(0, len(view), CHUNK_BYTES):
                    with view[start : start + CHUNK_BYTES] as chunk:
                        check.check(chunk)
                        if cipher is None:
                            sink.write(chunk)
                            continue
                        sealed = room[: len(chunk) + TAG_BYTES]
                        cipher.encrypt_into(_nonce(1 + start // CHUNK_BYTES), chunk, None, sealed)
                        sink.write(sealed)
        except ValueError as exc:  # mmap's word for an empty file
            raise SnapshotRefused("truncated") from exc
    check.finish()


# -- reading ---------------------------------------------------------------------------------------------


class StoredSnapshotReader:
    """Reads a stored snapshot once, from its beginning. Every method may raise SnapshotRefused or OSError."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._cipher: AESGCM | None = None
        self._rest = b""  # bytes of a plain envelope that were read beyond the header
        self.manifest: SnapshotManifest
        begin = source.read(len(SEALED))
        self.head: StoredHead | None = None
        self._prefix = begin
        if begin == SEALED:
            self._read_head()
        elif begin[:6] == SEALED[:6]:
            raise SnapshotRefused("other_version")

    @property
    def num_bytes(self) -> int:
        """How many bytes a complete snapshot has. For a plain one this is known only after `open`."""
        if self.head is not None:
            return len(self._prefix) + self.head.rest_bytes
        return len(encode_header(self.manifest)) + self.manifest.payload_bytes

    def open(self, data_key: DataKey | None) -> SnapshotManifest:
        """Reads the manifest. `data_key`: the key that the head names, None when nobody has it."""
        self.manifest = self._open_plain(data_key) if self.head is None else self._open_sealed(self.head, data_key)
        return self.manifest

    def chunks(self) -> Iterator[memoryview]:
        """Yields the payload's chunks, each checked; after the last one nothing is missing.

        A chunk is good until the next one is read: all pass through the same memory, since memory that is new to
        the process costs more than reading and decrypting into it."""
        check = PayloadCheck(self.manifest)
        size = min(CHUNK_BYTES, max(1, self.manifest.payload_bytes))
        cipher = self._cipher
        stored = memoryview(bytearray(size if cipher is None else size + TAG_BYTES))
        plain = memoryview(bytearray(0 if cipher is None else size))
        for number in itertools.count(1):
            chunk = stored[: self._fill(stored)]
            if not chunk:
                break
            if cipher is not None:
                chunk = _decrypt(cipher, number, chunk, plain)
            check.check(chunk)
            yield chunk
        check.finish()

    # -- inside --------------------------------------------------------------------------------------

    def _fill(self, room: memoryview) -> int:
        """Reads into `room`; returns how many bytes came, which are fewer than `room` only at the end."""
        done = min(len(self._rest), len(room))
        room[:done] = self._rest[:done]
        self._rest = self._rest[done:]
        while done < len(room) and (more := self._source.readinto(room[done:])):
            done += more
        return done

    def _read_head(self) -> None:
        length_bytes = _read(self._source, _LENGTH.size)
        if len(length_bytes) < _LENGTH.size:
            raise SnapshotRefused("truncated")
        (length,) = _LENGTH.unpack(length_bytes)
        if length > _HEAD_BYTES_MAX:
            raise SnapshotRefused("bad_header")
        body = _read(self._source, length)
        if len(body) < length:
            raise SnapshotRefused("truncated")
        try:
            head = msgspec.msgpack.decode(body, type=StoredHead)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise SnapshotRefused("bad_header") from exc
        if not 0 < head.header_bytes <= HEADER_BYTES_MAX or head.payload_bytes < 0:
            raise SnapshotRefused("bad_header")
        self.head = head
        self._prefix += length_bytes + body

    def _open_sealed(self, head: StoredHead, data_key: DataKey | None) -> SnapshotManifest:
        if data_key is None or data_key.id != head.key_id:
            raise SnapshotRefused("unknown_key")
        self._cipher = _cipher(data_key, self._prefix)
        sealed = _read(self._source, head.header_bytes + TAG_BYTES)
        if len(sealed) < head.header_bytes + TAG_BYTES:
            raise SnapshotRefused("truncated")
        try:
            header = self._cipher.decrypt(_nonce(0), sealed, None)
        except InvalidTag as exc:
            raise SnapshotRefused("bad_header") from exc
        decoded = decode_header(header)
        if decoded is None or decoded[1] != len(header) or decoded[0].payload_bytes != head.payload_bytes:
            raise SnapshotRefused("bad_header")
        if decoded[0].key != head.key:
            raise SnapshotRefused("other_session")
        return decoded[0]

    def _open_plain(self, data_key: DataKey | None) -> SnapshotManifest:
        if data_key is not None:
            raise SnapshotRefused("not_encrypted")
        data = self._prefix
        while (decoded := decode_header(data)) is None:
            more = self._source.read(_HEADER_GUESS)
            if not more:
                raise SnapshotRefused("no_snapshot" if len(data) < len(MAGIC) else "truncated")
            data += more
        manifest, header_bytes = decoded
        self._rest = data[header_bytes:]
        return manifest


# -- inside ----------------------------------------------------------------------------------------------


def _head_of(manifest: SnapshotManifest, data_key: DataKey, salt: bytes, header_bytes: int) -> StoredHead:
    return StoredHead(manifest.tenant, manifest.session, data_key.id, salt, header_bytes, manifest.payload_bytes)


def _encode(head: StoredHead) -> bytes:
    body = msgspec.msgpack.encode(head)
    return SEALED + _LENGTH.pack(len(body)) + body


def _cipher(data_key: DataKey, prefix: bytes) -> AESGCM:
    return AESGCM(hashlib.blake2b(prefix, key=data_key.secret, digest_size=32, person=b"sessile-kv-seal").digest())


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "little")


def _decrypt(cipher: AESGCM, number: int, data: memoryview, room: memoryview) -> memoryview:
    """Decrypts a chunk into `room`; returns the part of `room` with it."""
    if len(data) <= TAG_BYTES:
        raise SnapshotRefused("truncated")
    chunk = room[: len(data) - TAG_BYTES]
    try:
        cipher.decrypt_into(_nonce(number), data, None, chunk)
    except InvalidTag as exc:
        raise SnapshotRefused("bad_chunk") from exc
    return chunk


def _read(source: ByteSource, size: int) -> bytes:
    """Reads `size` bytes, fewer only at the end: one raw read may be short."""
    data = source.read(size)
    if len(data) == size or not data:
        return data
    parts = [data]
    missing = size - len(data)
    while missing and (more := source.read(missing)):
        parts.append(more)
        missing -= len(more)
    return b"".join(parts)
