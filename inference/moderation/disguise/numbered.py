"""Words that are to be put in order by the numbers beside them, capitals between letters, and codes between words.

Each yields a stretch of a text, a pattern, and what its matches stand for, as `spelled` does, which begins here where a
text has a sign of them. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

Undo = Callable[["re.Match[str]"], str | None]
Spelling = tuple[int, int, re.Pattern[str], Undo]

_WHOLE: Final = re.compile(r".+", re.DOTALL)
_ONE: Final = r"[^\W\d_]+(?:['’-][^\W\d_]+)*"
_NUMBER_FIRST: Final = re.compile(rf"(?<![\w.])(\d{{1,2}})[^\w,;\n]{{1,4}}({_ONE})")
_NUMBER_FIRST_OF_MORE: Final = re.compile(
    rf"(?<![\w.])(\d{{1,2}})[^\w,;\n]{{1,4}}({_ONE}(?:[ ]{_ONE}){{0,5}})(?=\W{{0,3}}(?:\d|[^\w\s]|\Z))"
)
_WORD_FIRST: Final = re.compile(rf"(?<!\w)({_ONE})[^\w,;\n]{{1,4}}(\d{{1,2}})(?![\w])")
_APART_MAX: Final = 12  # code points between two of them
_ITEMS_MAX: Final = 256
_ITEMS_MIN: Final = 2
_LENGTH_MAX: Final = 4_096  # code points of a text in which these are looked for

_UPPER: Final = "".join(each for each in map(chr, range(0x560)) if each.isupper())
_LOWER: Final = "".join(each for each in map(chr, range(0x560)) if each.islower())
_UPPERS: Final = re.compile(f"[{_UPPER}]+")
_LOWERS: Final = re.compile(f"[{_LOWER}]+")
_BETWEEN: Final = re.compile(f"[{_UPPER}](?<=[{_LOWER}].)[{_LOWER}][{_UPPER}]|[{_UPPER}][{_LOWER}][{_UPPER}][{_LOWER}]")
_BETWEEN_AROUND: Final = 400
_BETWEEN_MAX: Final = 256


def numbered_words(text: str) -> Iterator[Spelling]:
    """Words with a number before or behind each, in the order of these."""
    if len(text) > _LENGTH_MAX:
        return
    for pattern, number, word in (
        (_NUMBER_FIRST, 1, 2),
        (_NUMBER_FIRST_OF_MORE, 1, 2),
        (_WORD_FIRST, 2, 1),
    ):
        run: list[re.Match[str]] = []
        for found in islice(pattern.finditer(text), _ITEMS_MAX):
            if run and not _goes_on(run, found, text, number):
                yield from _ordered(run, number, word)
                run = []
            run.append(found)
        yield from _ordered(run, number, word)


def _goes_on(run: list[re.Match[str]], found: re.Match[str], text: str, number: int) -> bool:
    gap = text[run[-1].end() : found.start()]
    return (
        len(gap) <= _APART_MAX and not any(map(str.isalpha, gap)) and all(found[number] != each[number] for each in run)
    )


def _ordered(run: list[re.Match[str]], number: int, word: int) -> Iterator[Spelling]:
    if len(run) < _ITEMS_MIN:
        return
    ordered = sorted(run, key=lambda each: int(each[number]))
    if ordered != run:
        made = " ".join(each[word] for each in ordered)
        yield run[0].start(), run[-1].end(), _WHOLE, lambda _: made


def between_capitals(text: str) -> Iterator[Spelling]:
    """Words in which letters are small and capital by turns: the small ones alone, and the capital ones."""
    places = [found.start() for found in islice(_BETWEEN.finditer(text), _BETWEEN_MAX)]
    if len(places) < _ITEMS_MIN:
        return
    first, last = max(0, places[0] - _BETWEEN_AROUND), min(len(text), places[-1] + _BETWEEN_AROUND)
    yield first, last, _UPPERS, lambda _: ""
    yield first, last, _LOWERS, lambda _: ""
