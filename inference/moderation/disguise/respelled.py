"""Words that are read as others: their inner letters in another order, or some of them hidden behind signs.

A reader does not mind "prjoect" or "pr*ject". Words of the phrases are known by their first and last letter and the
others in order; only words that match one are replaced, and the text is compared once more. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import compress, islice
from operator import itemgetter
from typing import Final

from inference.moderation.disguise.spelled import words_of

_WORD: Final = re.compile(r"[^\W\d_]{4,}")
_MASKS: Final = "*_#."  # a bullet is a dot in plain text
_MASK: Final = re.compile(rf"[{_MASKS}](?<=[a-z].)[a-z{_MASKS}]")
_DOT: Final = re.compile(r"\.(?<=[a-z].)[a-z.]")  # the same of one sign, which is looked for faster
_MASKED: Final = re.compile(rf"(?<![^\W_])[a-z]{{1,24}}[{_MASKS}]{{1,3}}[a-z{_MASKS}]{{0,24}}[a-z*_#](?![^\W_])")
_BESIDE: Final = ".,;:!?\"'()[]{}<>*_~-"
_BEFORE: Final = re.compile(rf"[a-z][a-z{_MASKS}]*\Z")
WORD_MAX: Final = 24
_MASKED_MAX: Final = 64  # words with hidden letters that are looked at in one text

_FIRST: Final = itemgetter(0)
_LAST: Final = itemgetter(-1)

Replaced = tuple[str, list[int]]


class RespelledWords:
    """The words of phrases of more than one word."""

    def __init__(self, phrases: Iterable[str]) -> None:
        words = {word for phrase in phrases if " " in phrase for word in _WORD.findall(phrase)}
        self._by_letters: dict[tuple[str, ...], str] = {_key(word): word for word in sorted(words)}
        self._by_ends: dict[tuple[str, int], list[str]] = {}
        self._shapes = {(word[0], word[-1], len(word)) for word in words}
        self._in_bytes = {(each[0], each[-1], len(each), *sorted(each)) for each in map(str.encode, words)}
        self._byte_shapes = {each[:3] for each in self._in_bytes}
        self._plain = frozenset(map(str.encode, self._by_letters.values()))  # which nothing is put in place of
        for word in sorted(words):
            self._by_ends.setdefault((word[0], len(word)), []).append(word)

    def replace(self, folded: str, known: set[bytes] | None = None) -> Replaced | None:
        """The text with the words that are meant, and where each code point stood; None where there are none. `known`
        are its words, where they are at hand."""
        if not self._shapes:
            return None
        found: list[tuple[int, int, str]] = []
        shapes = self._shapes
        words = {*folded.split()} if self._may_be_in(words_of(folded) if known is None else known) else set()
        words.update([each.strip(_BESIDE) or "-" for each in words if not (each[-1].isalpha() and each[0].isalpha())])
        for word in words:
            if (word[0], word[-1], len(word)) in shapes and (other := self._by_letters.get(_key(word), word)) != word:
                found += [(each.start(), each.end(), other) for each in re.finditer(rf"\b{re.escape(word)}\b", folded)]
        mask = _MASK if any(map(folded.__contains__, "*_#")) else _DOT
        for sign in islice(mask.finditer(folded), _MASKED_MAX):
            before = _BEFORE.search(folded, max(0, sign.start() - WORD_MAX), sign.start())
            masked = _MASKED.match(folded, before.start()) if before is not None else None
            if masked is None:
                continue
            if (meant := self._unmasked(masked[0])) is not None:
                found.append((masked.start(), masked.end(), meant))
        if not found:
            return None
        pieces: list[str] = []
        places: list[int] = []
        at = 0
        for first, last, word in sorted(set(found)):
            if first < at:
                continue
            pieces += (folded[at:first], word)
            places += [*range(at, first), *(min(first + index, last - 1) for index in range(len(word)))]
            at = last
        return "".join((*pieces, folded[at:])), [*places, *range(at, len(folded))]

    def _may_be_in(self, words: set[bytes]) -> bool:
        """Whether a word has the letters of one in another order: by their bytes, which is a cheap look."""
        words = words - self._plain
        shapes = zip(map(_FIRST, words), map(_LAST, words), map(len, words), strict=True)
        alike = compress(words, map(self._byte_shapes.__contains__, shapes))
        return any((word[0], word[-1], len(word), *sorted(word)) in self._in_bytes for word in alike)

    def _unmasked(self, masked: str) -> str | None:
        if sum(map(str.isalpha, masked)) * 2 < len(masked):
            return None
        for word in self._by_ends.get((masked[0], len(masked)), ()):
            if all(a == b or not a.isalpha() for a, b in zip(masked, word, strict=True)):
                return word
        return None


def _key(word: str) -> tuple[str, ...]:
    return (word[0], *sorted(word[1:-1]), word[-1])
