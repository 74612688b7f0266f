"""Scores prompt injection with a linear model over hashed words. Needs no more than numpy.

A text is the set of its words, pairs and triples of words, each hashed to one of `PLACES` places (`word_hashing`: the
same everywhere); its vector has length 1. The weights are plain arrays, read without pickle.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from inference.moderation.segments import count_distinct, expand_ranges
from inference.moderation.word_hashing import bigram_hashes, codes_of, hashes_of, word_characters, words_in

FILE: Final = Path(__file__).parent / "model.npz"
PLACE_BITS: Final = 15
PLACES: Final = 1 << PLACE_BITS


def hashed_features(words: Any) -> tuple[Any, Any, Any]:
    """The places (n,) of each word, given by its hash, of it with the next, and of it with the next two (as far as
    there are)."""
    twos = bigram_hashes(words[:-1], words[1:])
    threes = bigram_hashes(twos[:-1], words[2:])
    return _indices_of(words), _indices_of(twos), _indices_of(threes)


def _indices_of(hashes: Any) -> Any:
    return (hashes & np.uint64(PLACES - 1)).astype(np.int64)


def feature_indices(text: str) -> list[int]:
    """Where a plain, lower-case text has its ones."""
    codes = codes_of(text)
    words = hashes_of(codes, *words_in(codes, word_characters(), np.zeros(0, dtype=np.int64)))
    found: list[int] = count_distinct(np.concatenate(hashed_features(words)))[0].tolist()
    return found


class LinearModel(NamedTuple):
    weights: Any  # (PLACES,) float32
    intercept: float
    version: str

    @classmethod
    def load(cls) -> LinearModel:
        with np.load(FILE, allow_pickle=False) as arrays:
            digest = hashlib.sha256(FILE.read_bytes()).hexdigest()[:12]
            return cls(arrays["weights"], float(arrays["intercept"]), f"injection/{digest}")

    def scores(self, words: Any, first: Any, behind: Any) -> Any:
        """Of ranges (n,) of the words' hashes: (n,) from 0, harmless, to 1."""
        marks = []
        for more, hashes in enumerate(hashed_features(words)):  # a range of n words has n, n - 1, n - 2 of them
            row, index = expand_ranges(first, behind - more)
            marks.append(row * PLACES + hashes[index])
        keys = count_distinct(np.concatenate(marks))[0]
        row, place = keys >> PLACE_BITS, keys & (PLACES - 1)
        counts = np.bincount(row, minlength=len(first))
        sums = np.bincount(row, self.weights[place], minlength=len(first))
        return 1 / (1 + np.exp(-sums / np.sqrt(np.maximum(counts, 1)) - self.intercept))
