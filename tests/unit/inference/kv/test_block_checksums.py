"""What a worker leaves when it is killed: the blocks that have a right checksum, and no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inference.kv.block_checksums import add_checksums, checksums_of, count_intact

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
