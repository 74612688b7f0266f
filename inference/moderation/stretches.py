"""A text cut into what is judged by itself: its sentences, and neighbours laid together up to a length.

What is bad may be a few words, lost in the average of a long text, or how some sentences follow each other. The words
of neighbours are those of their sentences one after another: a text is read once, a stretch is a range of its words.
Pure; does not know what is judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np

STRETCH: Final = 240  # code points
_BREAK: Final = re.compile(r"(?<=[.!?\n])\s+")


def sentences_of(text: str) -> list[str]:
    """At least one; a long one is cut."""
    sentences: list[str] = []
    for sentence in _BREAK.split(text):
        if len(sentence) <= STRETCH:
            sentences.append(sentence)
        else:
            sentences += [sentence[at : at + STRETCH] for at in range(0, len(sentence), STRETCH)]
    return sentences


def neighbours(sentences: Sequence[str]) -> list[tuple[int, int]]:
    """Which of them (first, behind the last) make a stretch together, a space between; none that is one alone."""
    together: list[tuple[int, int]] = []
    first = length = 0
    for index, sentence in enumerate(sentences):
        if index and length + len(sentence) < STRETCH:
            length += 1 + len(sentence)
            continue
        together.append((first, index))
        first, length = index, len(sentence)
    together.append((first, len(sentences)))
    return [(start, end) for start, end in together if end - start > 1]


class Stretches(NamedTuple):
    """All stretches of some texts: ranges of `words`, which are those of all texts, in order."""

    words: list[str]
    first: Any  # (stretches,) int64
    behind: Any  # (stretches,) int64: the end of the range
    text: Any  # (stretches,) int64: which text it is of

    def worst(self, scores: Any) -> list[float]:
        """Each text's highest score, of (stretches,) scores."""
        highest = np.zeros(int(self.text.max(initial=-1)) + 1)
        np.maximum.at(highest, self.text, scores)
        found: list[float] = highest.tolist()
        return found


def cut(texts: Sequence[str], words_of: Callable[[str], list[str]]) -> Stretches:
    words: list[str] = []
    ranges: list[tuple[int, int, int]] = []
    for number, text in enumerate(texts):
        sentences = sentences_of(text)
        found = [words_of(sentence) for sentence in sentences]
        at = list(accumulate(map(len, found), initial=len(words)))
        words += [word for each in found for word in each]
        ranges += [(at[index], at[index + 1], number) for index in range(len(sentences))]
        ranges += [(at[start], at[end], number) for start, end in neighbours(sentences)]
    first, behind, text_of = np.array(ranges, dtype=np.int64).reshape(-1, 3).T
    return Stretches(words, first, behind, text_of)


def spread(first: Any, behind: Any) -> tuple[Any, Any]:
    """Ranges (n,) as (which range, index) of all that lies in them, range after range."""
    lengths = np.maximum(behind - first, 0)
    row = np.repeat(np.arange(len(lengths)), lengths)
    begins = np.cumsum(lengths) - lengths
    return row, np.arange(len(row)) + (first - begins)[row]


def distinct(keys: Any) -> tuple[Any, Any]:
    """The different ones of (n,) int64, ascending, and how often each is there. (`numpy.unique` takes twenty times as
    long for a message's worth of them.)"""
    keys = np.sort(keys)
    starts = np.flatnonzero(np.diff(keys, prepend=-1))  # keys are not negative
    return keys[starts], np.diff(starts, append=len(keys))
