"""Segments: what is written is read, and nothing else is."""

from __future__ import annotations

import random

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from persistence.backup.segments import (
    DamagedBackup,
    SealedPart,
    SegmentHeader,
    checked_segment,
    decode_header,
    decode_object,
    encode_object,
    encode_segment,
    first_hash,
    hash_of,
    number_of,
    open_part,
    part_bytes,
    segment_name,
)
from sessions.model.types import UnixMs

CIPHER = AESGCM(b"c" * 32)
OTHER = AESGCM(b"o" * 32)


def header(number: int = 1) -> SegmentHeader:
    return SegmentHeader("chain", number, first_hash("chain"), UnixMs(5), True, 1, 14, ())


def segment(number: int = 1) -> bytes:
    rows = [(0, 0, ("t", "s", 1, "k", b"body")), (1, 1, ("t", "s"))]
    parts = [
        SealedPart("", "k1", 3, CIPHER, ("t", "s/s"), rows),
        SealedPart("t", "k2", 0, OTHER, ("t", ""), rows[1:]),
    ]
    return encode_segment(header(number), parts)


def test_what_is_written_is_read() -> None:
    data = segment()
    read, begin = checked_segment(data)
    assert read.parts[0].page == 3 and read.parts[1].tenant == "t" and read.previous == first_hash("chain")
    one, two = part_bytes(data, read, begin)
    opened = open_part(read, 0, one, CIPHER)
    assert opened.subject == ("t", "s/s") and opened.rows[0] == (0, 0, ["t", "s", 1, "k", b"body"])
    assert open_part(read, 1, two, OTHER).rows == [(1, 1, ["t", "s"])]
    assert decode_header(data[:begin]) == (read, begin)
    with pytest.raises(EOFError):
        decode_header(data[:20])


def test_a_part_opens_in_its_place_and_with_its_key_only() -> None:
    read, begin = checked_segment(data := segment())
    one, two = part_bytes(data, read, begin)
    elsewhere, _ = checked_segment(segment(2))
    for about, index, stored, cipher in (
        (read, 0, one, OTHER),
        (read, 0, two, OTHER),
        (elsewhere, 0, one, CIPHER),
        (read, 0, one[:5], CIPHER),
    ):
        with pytest.raises(DamagedBackup):
            open_part(about, index, stored, cipher)


def test_every_flipped_bit_is_found() -> None:
    data = segment()
    chance = random.Random(7)
    for place in chance.sample(range(len(data) * 8), 500):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(DamagedBackup):
            checked_segment(bytes(damaged))
    for cut in (0, 3, 40, len(data) - 1):
        with pytest.raises(DamagedBackup):
            checked_segment(data[:cut])


def test_names_are_in_the_order_of_numbers() -> None:
    names = [segment_name("c", number) for number in (1, 2, 10, 999_999)]
    assert names == sorted(names) and [number_of(name) for name in names] == [1, 2, 10, 999_999]
    assert number_of("journal/c/note.txt") is None


def test_small_objects_are_of_their_kind() -> None:
    data = encode_object(b"ONE\n", ["a", 1])
    assert decode_object(b"ONE\n", data, list) == ["a", 1]
    for magic, stored, kind in ((b"TWO\n", data, list), (b"ONE\n", data[:-1] + b"x", list), (b"ONE\n", data, int)):
        with pytest.raises(DamagedBackup):
            decode_object(magic, stored, kind)
    assert hash_of(data) == data[-32:] and msgspec.msgpack.decode(data[4:-32]) == ["a", 1]
