"""A linear model over hashed words: what it sees of a text, and its score. No more than numpy is needed.

A text is the set of its words, pairs and triples of words, each hashed to one of `PLACES` places (CRC-32, which is the
same everywhere); its vector has length 1. The weights are plain arrays, read without pickle.
"""

from __future__ import annotations

import hashlib
import math
import re
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

FILE: Final = Path(__file__).parent / "model.npz"
PLACES: Final = 2**15
_WORD: Final = re.compile(r"[^\W_]+")


def places(text: str) -> list[int]:
    """Where a plain, lower-case text has its ones."""
    words = [word.encode() for word in _WORD.findall(text)]
    pairs = [zlib.crc32(b" " + second, zlib.crc32(first)) for first, second in pairwise(words)]
    triples = [zlib.crc32(b" " + third, pair) for pair, third in zip(pairs, words[2:], strict=False)]
    return list({each % PLACES for each in (*map(zlib.crc32, words), *pairs, *triples)})


class Linear(NamedTuple):
    weights: Any  # (PLACES,) float32
    intercept: float
    version: str

    @classmethod
    def load(cls) -> Linear:
        with np.load(FILE, allow_pickle=False) as arrays:
            digest = hashlib.sha256(FILE.read_bytes()).hexdigest()[:12]
            return cls(arrays["weights"], float(arrays["intercept"]), f"injection/{digest}")

    def scores(self, texts: Sequence[str]) -> list[float]:
        """From 0, harmless, to 1."""
        scores = []
        for text in texts:
            found = places(text)
            raw = float(self.weights[found].sum()) / math.sqrt(len(found)) if found else 0.0
            scores.append(1 / (1 + math.exp(-raw - self.intercept)))
        return scores
