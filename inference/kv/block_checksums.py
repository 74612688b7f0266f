"""Writes a checksum behind each block that a run writes, so that its blocks are of use when its worker dies.

Beside a run's file lies one of checksums: a tag of each block and rank, written when the block has been. A worker that
is killed closes no file and reports nothing; then the blocks whose checksums are right count as written, from the first
one on. A block that was torn, never written, or is another file's has none. Like all tags they stop accidents alone.

    checksums | block 0: rank 0, rank 1, ... | block 1: ... | ...        (each TAG_BYTES)

It knows no engine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from inference.kv.envelope import TAG_BYTES, BlockTags

_SUFFIX: Final = ".sums"


def checksums_of(path: Path) -> Path:
    """Returns the path of the checksums of a run's file, whose name no other file ever has."""
    return path.with_suffix(_SUFFIX)


def add_checksums(path: Path, first: int, blocks: list[memoryview], rank: int, world: int) -> None:
    """Writes checksums of one rank's part of the blocks from `first` on, once the blocks are in the run's file.
    Blocking. Raises OSError."""
    if not blocks:
        return
    tags = BlockTags(path.stem.encode())
    places = [(first + row) * world + rank for row in range(len(blocks))]
    made = [tags.of(place, block) for place, block in zip(places, blocks, strict=True)]
    file = os.open(checksums_of(path), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        if world == 1:
            places, made = places[:1], [b"".join(made)]
        for place, data in zip(places, made, strict=True):
            os.pwrite(file, data, place * TAG_BYTES)
    finally:
        os.close(file)


def count_intact(path: Path, first: int, limit: int, block_bytes: int, ranks: int) -> int:
    """Returns how many blocks from the first on may be used, at most `limit`. The first `first` blocks are in another
    file and count as good; each later one must be in the file with a right checksum of every rank. `block_bytes`: the
    size of a block, of all ranks together. Blocking. A block that cannot be read counts as bad."""
    tags, part_bytes = BlockTags(path.stem.encode()), block_bytes // ranks
    room = memoryview(bytearray(part_bytes))
    try:
        checksums = checksums_of(path).read_bytes()
        with path.open("rb") as file:
            file.seek(first * block_bytes)
            for place in range(first * ranks, limit * ranks):
                checksum = checksums[place * TAG_BYTES : (place + 1) * TAG_BYTES]
                if not checksum or file.readinto(room) < part_bytes or tags.of(place, room) != checksum:
                    return place // ranks
    except OSError:
        return first
    return max(first, limit)
