"""A segment: the changes of a fraction of a second as one object, sealed in parts, hashed, chained to the one before.

    magic | length of the header, 4 bytes | header | parts ... | SHA-256 of all that stands before

The header says the place in the chain, the hash of the segment before, when the state was that it leads to, and whose
each part is; names of sessions and users stand in the parts alone. A part is a list of rows in MessagePack under
AES-256-GCM: of one session or user under the key of that scope, or of a tenant under the tenant's key. Its place
(chain, number, index) goes with it as associated data: a part that was put elsewhere does not open.

Pure: knows no store and no table.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sessions.model.types import UnixMs

MAGIC: Final = b"SLSEG1\n"
HASH_BYTES: Final = 32
HEADER_BYTES_MAX: Final = 1 << 26
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
NUMBER_DIGITS: Final = 12

Row = tuple[int, int, Sequence[Any]]
"""(table, what happens, values): see `row_tables`."""


class DamagedBackup(Exception):
    """An object of a backup is not as it was written; the message says what is wrong with it."""


class PartHeader(msgspec.Struct, frozen=True, array_like=True):
    tenant: str
    """Whose key sealed it; "" where it was a scope's, which `key_id` and `page` name."""
    key_id: str
    page: int
    size: int
    rows: int


class SegmentHeader(msgspec.Struct, frozen=True, array_like=True):
    chain: str
    number: int
    """From 1."""
    previous: bytes
    """The hash of the segment before."""
    taken_at: UnixMs
    """All that was committed before the state was read is in it or before it, and nothing that was committed later."""
    complete: bool
    """Whether the chain up to here is one state; else more of it follows."""
    restore_from: int
    """Where the last whole copy begins that ends here or before: a restore begins there. 0: there is none yet."""
    schema: int
    """The version of the journal's tables."""
    parts: tuple[PartHeader, ...]


class SegmentPlace(NamedTuple):
    chain: str
    number: int


class SealedPart(NamedTuple):
    """What a part is sealed with, and what is in it."""

    tenant: str
    key_id: str
    page: int
    cipher: AESGCM
    subject: tuple[str, str]
    """(tenant, the scope's name); sealed with the rows."""
    rows: Sequence[Row]


class OpenedPart(NamedTuple):
    subject: tuple[str, str]
    rows: list[tuple[int, int, list[Any]]]


_encode = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(SegmentHeader).decode
_decode_part = msgspec.msgpack.Decoder(tuple[tuple[str, str], list[tuple[int, int, list[Any]]]]).decode


def segment_name(chain: str, number: int) -> str:
    return f"{folder_of(chain)}/{number:0{NUMBER_DIGITS}d}"


def folder_of(chain: str) -> str:
    return f"journal/{chain}"


def number_of(name: str) -> int | None:
    """The number in an object's name; None: it is no segment's."""
    last = name.rpartition("/")[2]
    return int(last) if len(last) == NUMBER_DIGITS and last.isdigit() else None


def first_hash(chain: str) -> bytes:
    """What stands for the segment before the first one."""
    return hashlib.sha256(b"sessile backup chain " + chain.encode()).digest()


def encode_segment(header: SegmentHeader, parts: Sequence[SealedPart]) -> bytes:
    """`header` as it is to be, but for its parts."""
    place = SegmentPlace(header.chain, header.number)
    sealed, about = [], []
    for index, part in enumerate(parts):
        plain = _encode((part.subject, part.rows))
        nonce = os.urandom(NONCE_BYTES)
        stored = nonce + part.cipher.encrypt(nonce, plain, _associated(place, index, part.tenant, part.key_id))
        sealed.append(stored)
        about.append(PartHeader(part.tenant, part.key_id, part.page, len(stored), len(part.rows)))
    packed = _encode(msgspec.structs.replace(header, parts=tuple(about)))
    return hashed([MAGIC, len(packed).to_bytes(4, "big"), packed, *sealed])


def decode_header(data: bytes) -> tuple[SegmentHeader, int]:
    """The header of a segment, or of its beginning, and where its parts begin. Raises DamagedBackup; the hash is not
    looked at. A beginning that is too short raises EOFError."""
    begin = len(MAGIC) + 4
    if data[: len(MAGIC)] != MAGIC:
        raise DamagedBackup("it is no segment")
    size = int.from_bytes(data[len(MAGIC) : begin], "big")
    if size > HEADER_BYTES_MAX:
        raise DamagedBackup("its header is too long")
    if len(data) < begin + size:
        raise EOFError(begin + size)
    try:
        return _decode_header(memoryview(data)[begin : begin + size]), begin + size
    except msgspec.DecodeError as exc:
        raise DamagedBackup("its header cannot be read") from exc


def checked_segment(data: bytes) -> tuple[SegmentHeader, int]:
    """The same of a whole segment, after its hash. Raises DamagedBackup."""
    checked(data)
    try:
        header, place = decode_header(data)
    except EOFError as exc:
        raise DamagedBackup("it ends in its header") from exc
    if place + sum(part.size for part in header.parts) + HASH_BYTES != len(data):
        raise DamagedBackup("its parts do not fill it")
    return header, place


def part_bytes(data: bytes, header: SegmentHeader, begin: int) -> list[bytes]:
    """The sealed parts of a checked segment."""
    parts, place = [], begin
    for part in header.parts:
        parts.append(data[place : place + part.size])
        place += part.size
    return parts


def open_part(header: SegmentHeader, index: int, stored: bytes, cipher: AESGCM) -> OpenedPart:
    """Raises DamagedBackup."""
    part = header.parts[index]
    about = _associated(SegmentPlace(header.chain, header.number), index, part.tenant, part.key_id)
    try:
        plain = cipher.decrypt(stored[:NONCE_BYTES], stored[NONCE_BYTES:], about)
        subject, rows = _decode_part(plain)
    except (InvalidTag, ValueError, msgspec.DecodeError) as exc:
        raise DamagedBackup(f"its part {index} does not open with its key") from exc
    if len(rows) != part.rows:
        raise DamagedBackup(f"its part {index} has another number of rows than its header says")
    return OpenedPart(subject, rows)


def _associated(place: SegmentPlace, index: int, tenant: str, key_id: str) -> bytes:
    return _encode(("backup", *place, index, tenant, key_id))


# -- what every object of a backup ends with ---------------------------------------------------------------------------


def hashed(pieces: Sequence[bytes]) -> bytes:
    data = b"".join(pieces)
    return data + hashlib.sha256(data).digest()


def hash_of(data: bytes) -> bytes:
    """The hash that an object ends with."""
    return data[-HASH_BYTES:]


def checked(data: bytes) -> None:
    """Raises DamagedBackup."""
    if len(data) < HASH_BYTES or hashlib.sha256(memoryview(data)[:-HASH_BYTES]).digest() != data[-HASH_BYTES:]:
        raise DamagedBackup("its bytes are not those that were written: the hash differs")


def encode_object(magic: bytes, content: Any) -> bytes:
    """A small object that is replaced as a whole."""
    return hashed([magic, _encode(content)])


def decode_object(magic: bytes, data: bytes, kind: Any) -> Any:
    """Raises DamagedBackup."""
    checked(data)
    if data[: len(magic)] != magic:
        raise DamagedBackup("it is an object of another kind")
    try:
        return msgspec.msgpack.decode(data[len(magic) : -HASH_BYTES], type=kind)
    except msgspec.DecodeError as exc:
        raise DamagedBackup("it cannot be read") from exc
