"""Finds phrases by their letters alone: written with hyphens, dots or spaces between letters, without spaces, or with
digits and signs that look like letters.

A text is squeezed to its letters in one pass; only where a phrase's letters stand in a row does it matter how they are
written (`_is_written`), so that ordinary text costs that pass. Letters that are mistaken for each other are one: i, l,
1; o, 0; m, rn; w, vv. A phrase is found only where a word could begin and end, and never in a word that merely holds
its letters ("therapist" is no "the rapist"). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from inference.moderation.normalize import fold_case, normalize_text
from inference.moderation.phrase_tree import any_of
from inference.moderation.policy import Action

LETTERS_MIN: Final = 5
JOINED_MIN: Final = 12  # letters of a phrase that is looked for with its spaces elsewhere: shorter ones occur by chance
_MEANT: Final = dict(zip("i1!|0345@$78", "lllloeasastb", strict=True))
_PAIRS: Final = {"m": "rn", "w": "vv"}
_GAP: Final = re.compile(r"[^\w\s]{1,4}| [^\w\s] | {1,4}|_{1,3}")  # inside a word
_BETWEEN_WORDS: Final = re.compile(r"[ ]|[^\w\s]|_|[^\w]{2,5}")


class _Letters(dict[int, str | None]):
    """For `str.translate`: letters as they are compared, but for those that look like two; nothing of all else."""

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        kept = _MEANT.get(character, character if character.isalnum() else None)
        self[code] = kept
        return kept


_LETTERS: Final = _Letters()
for _code in range(128):
    _LETTERS[_code]  # known before the first text comes


def _squeeze(text: str) -> str:
    letters = text.translate(_LETTERS)
    for one, two in _PAIRS.items():
        letters = letters.replace(one, two)
    return letters


def _places(text: str) -> list[int]:
    """Where in a text each code point of its squeezed form stands."""
    return [
        index
        for index, each in enumerate(text)
        if (letter := _LETTERS[ord(each)]) is not None
        for _ in _PAIRS.get(letter, letter)
    ]


class SqueezedPhrases:
    """The phrases of one side of a policy, and those in which they are harmless."""

    def __init__(self, deny: Sequence[str], allow: Sequence[str], action: Action) -> None:
        self.action: Final = action
        self._phrases: dict[str, str] = {}
        for phrase in deny:
            plain = fold_case(normalize_text(phrase).strip())
            letters = _squeeze(plain)
            if sum(map(str.isalpha, plain)) >= LETTERS_MIN and len(letters) <= 512:
                self._phrases.setdefault(letters, plain)
        allowed = [letters for each in allow if (letters := _squeeze(each))]
        self._find = re.compile(any_of(self._phrases)) if self._phrases else None
        self._allow = re.compile(any_of(allowed)) if allowed else None

    def find(self, folded: str) -> Iterator[tuple[int, int]]:
        """The places of phrases in normalised text without case, but for those that are written plainly."""
        if self._find is None:
            return
        letters = _squeeze(folded)
        found = self._find.search(letters)
        if found is None:
            return
        places = _places(folded)
        allowed = [each.span() for each in self._allow.finditer(letters)] if self._allow is not None else []
        while found is not None:
            first, last = found.span()
            start, end = places[first], places[last - 1] + 1
            if not any(begin <= first and last <= over for begin, over in allowed) and self._is_written(
                folded, start, end, self._phrases[found[0]]
            ):
                yield start, end
            found = self._find.search(letters, first + 1)

    def _is_written(self, folded: str, start: int, end: int, phrase: str) -> bool:
        """Whether what stands there is the phrase, disguised: and not other words with its letters in a row."""
        written = folded[start:end]
        if written == phrase or _alnum(folded[start - 1 : start]) or _alnum(folded[end : end + 1]):
            return False
        characters = [each for each in written if not each.isspace()]
        if 4 * sum(map(str.isalpha, characters)) < sum(1 for each in characters if _LETTERS[ord(each)]):
            return False  # rather a number
        if " " not in written and not re.search(r"[\W_]", written) and " " in phrase:
            return len(phrase) - phrase.count(" ") >= JOINED_MIN
        gaps = _gaps(written, phrase)
        if gaps is None:
            return False
        inside, between = gaps
        marked = [gap for gap in inside if gap]
        if not all(_GAP.fullmatch(gap) for gap in marked) or not all(
            gap == "" or _BETWEEN_WORDS.fullmatch(gap) for gap in between
        ):
            return False
        if not marked:
            # Hyphens for spaces, or other letters for these. A sentence that ends between the words is none.
            return not any(re.fullmatch(r"[^\w\s] ", gap) for gap in between) and (
                "" not in between or len(phrase) >= JOINED_MIN
            )
        if all(gap.isspace() for gap in marked) and 2 * len(marked) < len(inside):
            return len(phrase) >= JOINED_MIN  # words that were cut elsewhere
        return True


def _gaps(written: str, phrase: str) -> tuple[list[str], list[str]] | None:
    """What stands between the letters: inside the phrase's words, and between them. None where they do not match."""
    inside: list[str] = []
    between: list[str] = []
    here, there = _places(written), _places(phrase)
    if len(here) != len(there):
        return None
    for (a, b), (c, d) in zip(pairwise(here), pairwise(there), strict=True):
        gap = written[a + 1 : b] if b > a else ""
        (between if d > c + 1 else inside).append(gap)
    return inside, between


def _alnum(character: str) -> bool:
    return character.isalnum()
