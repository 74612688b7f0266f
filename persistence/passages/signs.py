"""The signs of vectors, in memory: a search compares those of all chunks of a store before it reads any vector.

A row of `packed_signs` has the chunks that one call of `put_chunks` stored: their numbers, and a bit for each number of
their vectors. The rows of a store are read when it is first searched, and kept until other stores need the room. The
version of a store changes with its completed files, and only then is the list of its rows read again. A chunk that was
deleted is not found, though its signs may still be kept: a search reads the nearest chunks from their table.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Final, NamedTuple

import numpy

KEPT_BYTES_MAX: Final = 256 << 20  # of all stores; the store that was searched last is kept in any case
ROWS_AT_ONCE: Final = 256
_ENTRY_BYTES: Final = 128  # of a dictionary, about
_WORD_BYTES: Final = 8  # signs are compared as numbers of 64 bits


def signs(vector: bytes) -> bytes:
    """Returns the signs of a vector of little-endian float32 numbers: one bit for each, padded to whole bytes."""
    bits: bytes = numpy.packbits(numpy.frombuffer(vector, "<f4") > 0).tobytes()
    return bits


def packed(numbers: Sequence[int]) -> bytes:
    """Returns numbers of chunks as PostgreSQL's `int8send` writes them."""
    packed_numbers: bytes = numpy.array(numbers, ">i8").tobytes()
    return packed_numbers


class StoreSigns(NamedTuple):
    """The signs of a store at a version: the number of each chunk, and its signs as a column of `bits`. `rows` has the
    rows of `packed_signs` that they are from, with how many chunks each has, in this order. `common_words` are the
    hashes of words that are known to be common at this version."""

    version: int
    rows: dict[int, int]
    chunks: Any
    bits: Any
    common_words: set[str]

    @property
    def size(self) -> int:
        """The memory that they take, in bytes."""
        return int(self.chunks.nbytes + self.bits.nbytes) + _ENTRY_BYTES * (len(self.rows) + 8)

    def nearest(self, vector: bytes, rows: Container[int] | None, limit: int) -> list[int]:
        """Returns the numbers of the chunks (of these rows only, if they are given) whose signs are the nearest."""
        distances = numpy.zeros(len(self.chunks), "u2")
        for column, word in zip(self.bits, _words(signs(vector), 1)[:, 0], strict=False):
            distances += numpy.bitwise_count(column ^ word)
        chunks = self.chunks
        if rows is not None:
            among = self._among(rows)
            distances, chunks = distances[among], chunks[among]
        numbers: list[int] = chunks[numpy.argsort(distances, kind="stable")[:limit]].tolist()
        return numbers

    def joined(self, stored: Sequence[tuple[int, bytes, bytes]]) -> StoreSigns:
        """Returns these signs with those of further rows."""
        chunks = [numpy.frombuffer(numbers, ">i8") for _, numbers, _ in stored]
        rows = {row: len(numbers) for (row, _, _), numbers in zip(stored, chunks, strict=True)}
        bits = [_words(packed_bits, len(numbers)) for (_, _, packed_bits), numbers in zip(stored, chunks, strict=True)]
        if self.rows:
            chunks, bits = [self.chunks, *chunks], [self.bits, *bits]
        joined = numpy.concatenate(chunks).astype("i8"), numpy.concatenate(bits, axis=1)
        return StoreSigns(self.version, self.rows | rows, *joined, self.common_words)

    def of_rows(self, rows: Container[int], version: int) -> StoreSigns:
        """Returns the signs of these rows alone, as of a version."""
        counts, among = {row: count for row, count in self.rows.items() if row in rows}, self._among(rows)
        return StoreSigns(version, counts, self.chunks[among], self.bits.compress(among, axis=1), set())

    def _among(self, rows: Container[int]) -> Any:
        """Returns for each chunk whether it is from one of these rows."""
        return numpy.repeat(numpy.array([row in rows for row in self.rows], bool), list(self.rows.values()))


_NONE: Final = StoreSigns(-1, {}, numpy.zeros(0, "i8"), numpy.zeros((0, 0), "u8"), set())


def _words(bits: bytes, count: int) -> Any:
    """Returns the signs of `count` vectors as numbers of 64 bits: a row for each 64 signs, a column for each vector."""
    unpadded = numpy.frombuffer(bits, "u1").reshape(count, -1)
    padded = numpy.zeros((count, -(-unpadded.shape[1] // _WORD_BYTES) * _WORD_BYTES), "u1")
    padded[:, : unpadded.shape[1]] = unpadded
    return numpy.ascontiguousarray(padded.view("u8").T)


class SignCache:
    """The signs of the stores that were searched last, by the numbers of the stores."""

    def __init__(self) -> None:
        self._kept: dict[int, StoreSigns] = {}  # the store that was searched last comes last
        self._size = 0  # of all of them, in bytes

    def get(self, store: int) -> StoreSigns:
        """Returns what is kept of a store: of any version, of version -1 if it is not complete."""
        store_signs = self._kept.pop(store, None)
        if store_signs is None:
            return _NONE
        self._kept[store] = store_signs
        return store_signs

    def put(self, store: int, store_signs: StoreSigns) -> StoreSigns:
        """Keeps the signs of a store, and returns them. The signs of others make room."""
        self._drop(store)
        self._kept[store] = store_signs
        self._size += store_signs.size
        while self._size > KEPT_BYTES_MAX and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))
        return store_signs

    def _drop(self, store: int) -> None:
        before = self._kept.pop(store, None)
        self._size -= before.size if before is not None else 0
