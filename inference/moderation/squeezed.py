"""Finds phrases by their letters alone: written with hyphens, dots or spaces between letters, without spaces, or with
digits and signs that look like letters, with letters doubled, or backwards.

A text is squeezed to its letters in one pass; only where a phrase's letters stand in a row does it matter how they are
written (`_is_written`), so that ordinary text costs that pass. Letters that are mistaken for each other are one: i, l,
1; o, 0; m, rn; w, vv. A phrase is found only where a word could begin and end, and never in a word that merely holds
its letters ("therapist" is no "the rapist"). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Final

from inference.moderation.normalize import fold_case, normalize_text
from inference.moderation.phrase_tree import any_of
from inference.moderation.policy import Action

LETTERS_MIN: Final = 5
BACKWARDS_MIN: Final = 8  # letters of a phrase that is looked for backwards too, as a whole and word by word
JOINED_MIN: Final = 11  # letters of a phrase that is looked for with its spaces elsewhere: shorter ones occur by chance
FURTHER_MIN: Final = 3  # letters that a phrase with doubled letters has beyond its own
LETTER_BY_LETTER: Final = 5
FEW: Final = 24  # phrases that are looked for one by one in less time than by their pattern
_RN: Final = re.compile(r"(?:r+n+)+")
_DOUBLED: Final = re.compile(rb"\0(?:\0|[^\0]\0[^\0]\0)")
_FIRST_LETTER: Final = ord("a")
_LETTER: Final = re.compile(r"[^\W_]")
_OTHER: Final = re.compile(r"[^\x00-\x7f]")
OTHERS_MAX: Final = 256  # bytes beyond ASCII
_MEANT: Final = dict(zip("i1!|0345@$78", "lllloeasastb", strict=True))
_PAIRS: Final = {"m": "rn", "w": "vv"}
_GAP: Final = re.compile(r"[^\w\s]{1,4}| [^\w\s] | {1,4}|_{1,3}|- ")  # inside a word
_BETWEEN_WORDS: Final = re.compile(r"[ ]|[^\w\s]|_|[^\w]{2,5}")


class _Letters(dict[int, str | None]):
    """For `str.translate`: letters as they are compared, but for those that look like two; nothing of all else."""

    def __init__(self, meant: Mapping[str, str]) -> None:
        super().__init__()
        self._meant = meant
        plain = [self[code] or "" for code in range(128)]  # known before the first text comes
        self._bytes = bytes(ord(each or "\0") for each in plain) + bytes(range(128, 256))
        self._dropped = bytes(code for code, each in enumerate(plain) if not each)

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        kept = self._meant.get(character, character if character.isalnum() else None)
        self[code] = kept
        return kept

    def of(self, text: str) -> str:
        """`text.translate(self)`, in a fifth of the time where the text is in ASCII or nearly so."""
        data = text.encode("utf-8", "surrogatepass")
        if len(data) - len(text) > OTHERS_MAX:
            return text.translate(self)
        if len(data) != len(text):
            data = _OTHER.sub(lambda found: self[ord(found[0])] or "", text).encode("utf-8", "surrogatepass")
        return data.translate(self._bytes, self._dropped).decode("utf-8", "surrogatepass")


_LETTERS: Final = _Letters(_MEANT)
_BETWEEN_SIGNS: Final = _Letters({sign: letter for sign, letter in _MEANT.items() if sign.isalnum()})
_SIGNS: Final = "!|@$"  # letters, or what stands between: cells, many of them, or one inside a word
_SIGNS_MIN: Final = 4
_SIGN_INSIDE: Final = re.compile(r"[!|@$](?<=\w.)(?=\w)")


def _squeeze(text: str, table: _Letters = _LETTERS) -> str:
    letters = table.of(text)
    for one, two in _PAIRS.items():
        letters = letters.replace(one, two)
    return letters


def _places(text: str, table: _Letters = _LETTERS) -> list[int]:
    """Where in a text each code point of its squeezed form stands."""
    return [
        index
        for index, each in enumerate(text)
        if (letter := table[ord(each)]) is not None
        for _ in _PAIRS.get(letter, letter)
    ]


class SqueezedPhrases:
    """The phrases of one side of a policy, and those in which they are harmless."""

    def __init__(self, deny: Sequence[str], allow: Sequence[str], action: Action) -> None:
        self.action: Final = action
        self._phrases: dict[str, str] = {}  # by their letters, each once
        self._backwards: set[str] = set()
        for phrase in deny:
            plain = fold_case(normalize_text(phrase).strip())
            letters = _squeeze(plain)
            if sum(map(str.isalpha, plain)) >= LETTERS_MIN and len(letters) <= 512:
                self._phrases.setdefault(_once(letters), plain)
            if sum(map(str.isalpha, plain)) >= BACKWARDS_MIN and len(letters) <= 512:
                for form in (plain[::-1], " ".join(word[::-1] for word in plain.split())):
                    if self._phrases.setdefault(_once(_squeeze(form)), form) is form and form != plain:
                        self._backwards.add(form)
        exact = [*map(_squeeze, self._phrases.values())]
        allowed = [letters for each in allow if (letters := _squeeze(each))]
        self._few = exact if len(exact) <= FEW else None
        self._find = re.compile(any_of(exact)) if exact else None
        self._find_repeated = re.compile(_repeated(any_of(self._phrases))) if exact else None
        self._allow = re.compile(any_of(allowed)) if allowed else None

    def find(self, folded: str) -> Iterator[tuple[int, int]]:
        """The places of phrases in normalised text without case, but for those that are written plainly."""
        if self._find is None or self._find_repeated is None:
            return
        yield from self._found(folded, _LETTERS)
        many = "|" in folded or sum(map(folded.count, _SIGNS)) >= _SIGNS_MIN
        if many or _SIGN_INSIDE.search(folded) is not None:
            yield from self._found(folded, _BETWEEN_SIGNS)

    def _found(self, folded: str, table: _Letters) -> Iterator[tuple[int, int]]:
        assert self._find is not None and self._find_repeated is not None
        letters = _squeeze(folded, table)
        doubled = _is_doubled(folded)
        if not doubled and self._few is not None and not any(map(letters.__contains__, self._few)):
            return
        pattern = self._find_repeated if doubled else self._find
        found = pattern.search(letters)
        if found is None:
            return
        places = _places(folded, table)
        allowed = [each.span() for each in self._allow.finditer(letters)] if self._allow is not None else []
        while found is not None:
            first, last = found.span()
            start, end = places[first], places[last - 1] + 1
            while last < len(letters) and letters[last] == letters[last - 1] and places[last] == end:
                last, end = last + 1, end + 1
            if not any(begin <= first and last <= over for begin, over in allowed) and self._is_written(
                folded, start, end, self._phrases[_once(found[0])], table
            ):
                yield start, end
            found = pattern.search(letters, first + 1)

    def _is_written(self, folded: str, start: int, end: int, phrase: str, table: _Letters) -> bool:
        """Whether what stands there is the phrase, disguised: and not other words with its letters in a row."""
        written = folded[start:end]
        plainly = written == phrase
        if plainly and phrase not in self._backwards:
            return False
        if _alnum(folded[start - 1 : start]) or _alnum(folded[end : end + 1]):
            return False
        if plainly:
            return True  # backwards
        further = len(_squeeze(written, table)) - len(_squeeze(phrase))
        if further:
            return further >= FURTHER_MIN and _are_words(written, phrase)
        characters = [each for each in written if not each.isspace()]
        if 4 * sum(map(str.isalpha, characters)) < sum(1 for each in characters if table[ord(each)]):
            return False  # rather a number
        if " " not in written and not re.search(r"[\W_]", written) and " " in phrase:
            return len(phrase) - phrase.count(" ") >= JOINED_MIN
        gaps = _gaps(written, phrase, table)
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


def _once(letters: str) -> str:
    """Letters without those that repeat the one before; `M` stands for rn, once or more."""
    return "".join(letter for letter, _ in groupby(_RN.sub("M", letters)))


def _repeated(pattern: str) -> str:
    """A pattern of letters with each of them once or more, the last one but once."""
    return _LETTER.sub(lambda found: "(?:r{1,8}n{1,8}){1,4}?" if found[0] == "M" else f"{found[0]}{{1,8}}?", pattern)


def _is_doubled(folded: str) -> bool:
    """Whether a letter stands there three times, or three in a row twice each. Neighbours that are the same come out as
    zero where all of the text is one number."""
    data = folded.encode("utf-8", "surrogatepass")
    number = int.from_bytes(data)
    same = (number ^ (number >> 8)).to_bytes(len(data))
    return any(data[found.start()] >= _FIRST_LETTER for found in _DOUBLED.finditer(same))


def _are_words(written: str, phrase: str) -> bool:
    """Whether a phrase with doubled letters is written in its words, in one, or letter by letter: in one sentence."""
    words = written.split()
    in_order = len(words) in (1, len(phrase.split())) or max(map(len, words)) <= LETTER_BY_LETTER
    return in_order and re.search(r"[.!?;:,] ", written) is None


def _gaps(written: str, phrase: str, table: _Letters) -> tuple[list[str], list[str]] | None:
    """What stands between the letters: inside the phrase's words, and between them. None where they do not match."""
    inside: list[str] = []
    between: list[str] = []
    here, there = _places(written, table), _places(phrase)
    if len(here) != len(there):
        return None
    for (a, b), (c, d) in zip(pairwise(here), pairwise(there), strict=True):
        gap = written[a + 1 : b] if b > a else ""
        (between if d > c + 1 else inside).append(gap)
    return inside, between


def _alnum(character: str) -> bool:
    return character.isalnum()
