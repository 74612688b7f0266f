"""Finds and hashes the words of texts, all at once, in arrays.

A word's hash is the sum of (c + 1) * BASE^i over its code points c at i, modulo 2^64 (Karp and Rabin, 1987), so that
running sums over a whole text, made once, give each word's as a difference; then its bits are mixed (the end of
SplitMix64: Steele, Lea and Flood, 2014). The same on every machine and in every process. Pure; keeps
nothing but tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np

BASE: Final = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
_INVERSE: Final = pow(BASE, -1, 1 << 64)
_CODE_POINTS: Final = 0x110000
_KEPT: Final = 131_072  # powers that are kept; longer texts make theirs


@cache
def word_characters(also: str = "") -> Any:
    """Returns (0x110000,) bool: whether each code point is part of a word, as letters, digits and `also` are."""
    table = np.fromiter((chr(point).isalnum() for point in range(_CODE_POINTS)), dtype=np.bool_, count=_CODE_POINTS)
    table[[ord(character) for character in also]] = True
    return table


def codes_of(text: str) -> Any:
    """Returns a text's code points, (n,) uint32; a lone surrogate is one too."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def words_in(codes: Any, inside: Any, borders: Any) -> tuple[Any, Any]:
    """Returns the begins and ends (n,) of the longest runs of `inside` among (m,) codes; none crosses one of
    `borders`, places in the codes."""
    within = inside[codes]
    begins, lasts = within.copy(), within.copy()
    begins[1:] &= ~within[:-1]
    lasts[:-1] &= ~within[1:]
    borders = borders[borders < len(codes)]
    begins[borders] = within[borders]
    before = borders[borders > 0] - 1
    lasts[before] = within[before]
    return np.flatnonzero(begins), np.flatnonzero(lasts) + 1


def hashes_of(codes: Any, begins: Any, ends: Any) -> Any:
    """Returns the hashes (n,) uint64 of the words at [begins, ends) of (m,) codes."""
    powers, inverses = _powers_to(len(codes))
    sums = np.zeros(len(codes) + 1, dtype=np.uint64)
    np.cumsum((codes.astype(np.uint64) + np.uint64(1)) * powers[: len(codes)], out=sums[1:])
    return _mixed((sums[ends] - sums[begins]) * inverses[begins])


def hashes_of_each(words: Sequence[str]) -> Any:
    """Returns the hashes (n,) uint64 of single words."""
    ends = np.cumsum([len(word) for word in words], dtype=np.int64)
    return hashes_of(codes_of("".join(words)), np.concatenate(([0], ends[:-1])), ends)


def _mixed(numbers: Any) -> Any:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _powers_to(length: int) -> tuple[Any, Any]:
    """Returns the powers of BASE and of its inverse, from 0 on, at least `length` of them."""
    return _kept_powers() if length <= _KEPT else _powers(length)


@cache
def _kept_powers() -> tuple[Any, Any]:
    return _powers(_KEPT)


def _powers(count: int) -> tuple[Any, Any]:
    made = []
    for base in (BASE, _INVERSE):
        factors = np.full(count, base, dtype=np.uint64)
        factors[:1] = 1
        made.append(np.cumprod(factors))
    return made[0], made[1]
