"""A linear model over hashed words: what it sees of a text, and its score. No more than numpy is needed.

A text is the set of its words, pairs and triples of words, each hashed to one of `PLACES` places (CRC-32, which is the
same everywhere); its vector has length 1. The weights are plain arrays, read without pickle.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from inference.moderation.stretches import distinct, spread

FILE: Final = Path(__file__).parent / "model.npz"
PLACES: Final = 2**15
_WORD: Final = re.compile(r"[^\W_]+")


def words_of(text: str) -> list[str]:
    """Of a plain, lower-case text."""
    return _WORD.findall(text)


def hashed(words: Sequence[str]) -> tuple[Any, Any, Any]:
    """The places (n,) of each word, of it with the next, and of it with the next two (as far as there are)."""
    if not words:
        return (np.zeros(0, dtype=np.int64),) * 3
    packed = " ".join(words).encode().split(b" ")  # words hold no space
    spaced = [b" " + word for word in packed]
    ones = list(map(zlib.crc32, packed))
    twos = list(map(zlib.crc32, spaced[1:], ones))
    threes = map(zlib.crc32, spaced[2:], twos)
    return _places(ones), _places(twos), _places(threes)


def _places(hashes: Iterable[int]) -> Any:
    return np.fromiter(hashes, dtype=np.int64) % PLACES


def places(text: str) -> list[int]:
    """Where a plain, lower-case text has its ones."""
    found: list[int] = distinct(np.concatenate(hashed(words_of(text))))[0].tolist()
    return found


class Linear(NamedTuple):
    weights: Any  # (PLACES,) float32
    intercept: float
    version: str

    @classmethod
    def load(cls) -> Linear:
        with np.load(FILE, allow_pickle=False) as arrays:
            digest = hashlib.sha256(FILE.read_bytes()).hexdigest()[:12]
            return cls(arrays["weights"], float(arrays["intercept"]), f"injection/{digest}")

    def scores(self, words: Sequence[str], first: Any, behind: Any) -> Any:
        """Of ranges (n,) of the words: (n,) from 0, harmless, to 1."""
        marks = []
        for more, hashes in enumerate(hashed(words)):  # a range of n words has n, n - 1, n - 2 of them
            row, index = spread(first, behind - more)
            marks.append(row * PLACES + hashes[index])
        row, place = np.divmod(distinct(np.concatenate(marks))[0], PLACES)
        counts = np.bincount(row, minlength=len(first))
        sums = np.bincount(row, self.weights[place], minlength=len(first))
        return 1 / (1 + np.exp(-sums / np.sqrt(np.maximum(counts, 1)) - self.intercept))
