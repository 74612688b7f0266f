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
_MEANT: Final = dict(
    zip("i1!|0345@$78mw", ("l", "l", "l", "l", "o", "e", "a", "s", "a", "s", "t", "b", "rn", "vv"), strict=True)
)
_GAP: Final = re.compile(r"[^\w\s]{1,4}| [^\w\s] | {1,4}|_{1,3}")  # inside a word
_BETWEEN_WORDS: Final = re.compile(r"[ ]|[^\w\s]|_|[^\w]{2,5}")


class _Letters(dict[int, str]):
    """For `str.translate`: letters as they are compared; nothing of all else."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        kept = _MEANT.get(character, character if character.isalnum() else "")
        self[code] = kept
        return kept


_LETTERS: Final = _Letters()


class SqueezedPhrases:
    """The phrases of one side of a policy, and those in which they are harmless."""

    def __init__(self, deny: Sequence[str], allow: Sequence[str], action: Action) -> None:
        self.action: Final = action
        self._phrases: dict[str, str] = {}
        for phrase in deny:
            plain = fold_case(normalize_text(phrase).strip())
            letters = plain.translate(_LETTERS)
            if sum(map(str.isalpha, plain)) >= LETTERS_MIN and len(letters) <= 512:
                self._phrases.setdefault(letters, plain)
        allowed = [letters for each in allow if (letters := each.translate(_LETTERS))]
        self._find = re.compile(any_of(self._phrases)) if self._phrases else None
        self._allow = re.compile(any_of(allowed)) if allowed else None

    def find(self, folded: str) -> Iterator[tuple[int, int]]:
        """The places of phrases in normalised text without case, but for those that are written plainly."""
        if self._find is None:
            return
        letters = folded.translate(_LETTERS)
        found = self._find.search(letters)
        if found is None:
            return
        places = [index for index, each in enumerate(folded) for _ in _LETTERS[ord(each)]]
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
        if 2 * sum(map(str.isalpha, characters)) < sum(1 for each in characters if _LETTERS[ord(each)]):
            return False  # a number
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
    here = [index for index, each in enumerate(written) for _ in _LETTERS[ord(each)]]
    there = [index for index, each in enumerate(phrase) for _ in _LETTERS[ord(each)]]
    if len(here) != len(there):
        return None
    for (a, b), (c, d) in zip(pairwise(here), pairwise(there), strict=True):
        gap = written[a + 1 : b] if b > a else ""
        (between if d > c + 1 else inside).append(gap)
    return inside, between


def _alnum(character: str) -> bool:
    return character.isalnum()
