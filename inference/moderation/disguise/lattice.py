r"""Finds phrases whose letters are written with other signs, where one may be several letters, and several one.

Letters as digits and signs (`|\/|` is m, 7 is t or l), as characters of any script that look like them, upside down,
and any of it mixed. All phrases make one pattern, a tree of what they share, in which each letter is whatever may be
read as it; gaps are left out of the text before. It is tried around such signs only: ordinary text in ASCII costs a
look for them. No part of the pattern repeats, so that a hostile text costs little more than another one. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from inference.moderation.disguise.letters import LATIN, SIGNS, UPSIDE_DOWN, several
from inference.moderation.normalize import fold_case, normalize_text
from inference.moderation.phrase_tree import any_of

PHRASES_MAX: Final = 1_000  # a pattern of more takes seconds to make
GAP_MAX: Final = 4  # spaces
LETTERS_MIN: Final = 8
LETTERS_MAX: Final = 200
_SIGNS: Final = {
    "a": "4@^", "b": "86", "c": "(<[{", "e": "3€&£", "g": "69&", "h": "#", "i": "1!|l", "l": "1|7!i", "o": "0",
    "q": "9", "s": "5$z2", "t": "7+1", "u": "v", "v": "u", "z": "2s",
}  # fmt: skip
_DRAWN: Final = {
    "a": ("/\\", "/-\\"), "b": ("|3", "l3", "13", "!3", "|o"), "c": ("()",),
    "d": ("|)", "[)", "cl", "|]", "l)", "c|", "o|"),
    "e": ("[-",), "f": ("|=", "ph"), "g": ("(_+",), "h": ("|-|", "]-[", "|n", "ln", "}{", ")-(", "/-/", "(-)"),
    "k": ("|<", "|{", "l<", "1<", "|x"), "l": ("|_", "1_"),
    "m": ("|\\/|", "/\\/\\", "rn", "nn", "|v|", "(v)", "/v\\", "^^", "[v]"), "n": ("|\\|", "/\\/", "|v", "^/"),
    "o": ("()", "[]", "<>"), "p": ("|>", "|*", "|o"), "q": ("0_", "(_,", "o_", "0,", "()_"),
    "r": ("|2", "12", "|?", "|~", "l2", "/2", "|^"), "t": ("-|-",), "u": ("|_|", "(_)", "ii"),
    "v": ("\\/",), "w": ("\\/\\/", "vv", "uu", "|/\\|", "\\^/", "\\x/"), "x": ("><", "}{", ")("), "y": ("`/", "'/"),
}  # fmt: skip
_LEET: Final = re.escape("|!@$()<>[]{}/\\^#&+€`")
_INSIDE: Final = (  # what follows a sign that may be a letter; a slash between words is none
    rf"(?<=[A-Za-z].)(?<!/)[A-Za-z0-9{_LEET}]|(?<=[A-Za-z]/)[0-9{_LEET}]|(?<=[0-9@$|#])[A-Za-z]"
)
# What plain text does not have: a digit or a sign inside a word.
_ODD: Final = re.compile(rf"[{_LEET}0-9](?:{_INSIDE})")
_ODD_OR_OTHER: Final = re.compile(
    rf"[{_LEET}0-9\x80-\U0010ffff](?:(?<=[^\x00-\x7f])[^\x00-\x7f]*"
    rf"|{_INSIDE})"
)
_ODD_OR_PAIRED: Final = re.compile(rf"{_ODD_OR_OTHER.pattern}|ii|vv")
_RARE_PAIRS: Final = frozenset({"ii", "vv"})
_LETTER_PAIR: Final = re.compile("rn|vv|cl|ii")
_LETTER: Final = re.compile("[A-Za-z]")
_LATIN: Final = frozenset(LATIN)
_REPEATED: Final = re.compile(r"(.)\1+")


def _pattern_of(letter: str) -> str:
    """Whatever may be read as a letter."""
    shared = "".join(sign for letters, sign in several().items() if letter in letters)
    single = f"[{re.escape(letter + _SIGNS.get(letter, '') + shared)}]"
    without = {re.sub("[-_*~?,']", "", each) for each in _DRAWN.get(letter, ())}  # which stand between letters
    drawn = sorted((each for each in without if len(each) > 1), key=len, reverse=True)
    return f"(?:{'|'.join(map(re.escape, drawn))}|{single})" if drawn else single


class LatticePhrases:
    """The phrases of one side of a policy, as they may be written in other signs; the first `PHRASES_MAX` of them."""

    def __init__(self, deny: Iterable[str]) -> None:
        self._known: set[str] = set()  # as they are plainly written, without spaces
        forms: list[str] = []
        for phrase in islice(deny, PHRASES_MAX):
            for form in dict.fromkeys((phrase, phrase.replace("ß", "b"))):  # which is read as b here
                whole = fold_case(normalize_text(form)).replace(" ", "")
                letters = re.sub("['.-]", "", whole)
                if LETTERS_MIN <= len(letters) <= LETTERS_MAX and set(letters) <= _LATIN:
                    forms += (letters, letters[::-1].translate(UPSIDE_DOWN))
                    self._known.update((whole, letters, letters[::-1]))
        self._around = 3 * max(map(len, forms), default=0) + 20
        units = {letter: _pattern_of(letter) for letter in LATIN}
        self._find = re.compile(_LETTER.sub(lambda found: units[found[0]], any_of(forms))) if forms else None
        once = [_REPEATED.sub(lambda found: found[1].upper(), form) for form in forms]
        units |= {letter.upper(): f"{unit}{{1,2}}" for letter, unit in units.items()}  # two, maybe by other signs
        self._find_once = re.compile(_LETTER.sub(lambda found: units[found[0]], any_of(once))) if forms else None

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """The places of phrases in a text as it came."""
        if self._find is None or self._find_once is None:
            return
        for first, last in _windows(text, self._around):
            window = text[first:last]
            signs = window.translate(SIGNS)
            known = False
            if self._find.search(signs) is not None:
                places = [first + index for index, each in enumerate(window) if SIGNS[ord(each)]]
                for span in self._searched(self._find, signs, places, text):
                    known = True
                    yield span
            if known or _REPEATED.search(signs) is None:
                continue
            once = _REPEATED.sub(r"\1", signs)
            if self._find_once.search(once) is not None:
                every = [first + index for index, each in enumerate(window) if SIGNS[ord(each)]]
                places = [place for at, place in enumerate(every) if not at or signs[at] != signs[at - 1]]
                yield from self._searched(self._find_once, once, places, text)

    def _searched(
        self, pattern: re.Pattern[str], signs: str, places: Sequence[int], text: str
    ) -> Iterator[tuple[int, int]]:
        found = pattern.search(signs)
        while found is not None:
            start, end = places[found.start()], places[found.end() - 1] + 1
            while end < len(text) and text[end] == text[end - 1]:
                end += 1
            if self._is_disguise(text, start, end, found[0]):
                yield start, end
            found = pattern.search(signs, found.start() + 1)

    def _is_disguise(self, text: str, start: int, end: int, signs: str) -> bool:
        """Whether it is more than plain words, which are compared as they are, and by their letters alone."""
        if text[start - 1 : start].isalnum() or text[end : end + 1].isalnum():
            return False
        if signs in self._known and fold_case(normalize_text(text[start:end])).replace(" ", "") in self._known:
            return False
        if signs.isascii() and signs.isalpha() and text[start:end].isascii() and not _is_paired(signs):
            return False
        gaps = [len(gap) for gap in re.findall(r"[^\S\n]+|\n", text[start:end])]
        return 4 * sum(map(str.isdecimal, signs)) <= 3 * len(signs) and max(gaps, default=0) <= GAP_MAX


def _is_paired(signs: str) -> bool:
    """Whether pairs of letters stand for others: a pair that is rare in words, or pairs of two kinds."""
    pairs = set(_LETTER_PAIR.findall(signs))
    return len(pairs) > 1 or bool(pairs & _RARE_PAIRS)


def _windows(text: str, around: int) -> Iterator[tuple[int, int]]:
    """What stands around whatever plain text does not have."""
    first = last = -1
    odd = _ODD if text.isascii() else _ODD_OR_OTHER
    if any(map(text.__contains__, _RARE_PAIRS)):
        odd = _ODD_OR_PAIRED
    for found in odd.finditer(text):
        begin, end = max(0, found.start() - around), found.end() + around
        if begin > last:
            if first >= 0:
                yield first, last
            first = begin
        last = end
    if first >= 0:
        yield first, min(last, len(text))
