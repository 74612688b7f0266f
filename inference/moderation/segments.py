"""Cuts texts into segments that are classified by themselves: sentences, and neighbours together up to a length.

What is bad may be a few words, lost in the average of a long text, or how some sentences follow each other. The words
of neighbours are those of their sentences one after another: a text is read once, a segment is a range of its words.
Pure; does not know the classifiers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from inference.moderation.word_hashing import codes_of, hashes_of, words_in

SEGMENT_CHARS: Final = 240  # code points
_NARROW_MAX: Final = 2**31 - 1
_BREAK: Final = re.compile(r"[.!?\n]\s+")  # of which the first character belongs to the sentence


Span = tuple[int, int]  # [start, end)


def split_sentences(text: str) -> list[Span]:
    """Returns the spans of sentences, at least one; a long one is cut."""
    breaks = [found.span() for found in _BREAK.finditer(text)]
    sentences: list[Span] = []
    start = 0
    for end, behind in [*[(first + 1, behind) for first, behind in breaks], (len(text), 0)]:
        while end - start > SEGMENT_CHARS:
            sentences.append((start, start + SEGMENT_CHARS))
            start += SEGMENT_CHARS
        sentences.append((start, end))
        start = behind
    return sentences


def group_neighbours(sentences: Sequence[Span]) -> list[Span]:
    """Returns groups of consecutive sentences that make a segment together, as index ranges [first, behind the last).
    Groups of one sentence are left out."""
    together: list[Span] = []
    first = length = 0
    for index, (start, end) in enumerate(sentences):
        if index and length + end - start < SEGMENT_CHARS:
            length += 1 + end - start
            continue
        together.append((first, index))
        first, length = index, end - start
    together.append((first, len(sentences)))
    return [(start, end) for start, end in together if end - start > 1]


class Segments(NamedTuple):
    """The segments of some texts. A segment is a range of words, and the words of all texts are in one array, in
    order."""

    words: Any  # (words,) uint64: their hashes
    first: Any  # (segments,) int64
    behind: Any  # (segments,) int64: the end of the range
    text: Any  # (segments,) int64: which text it is of

    def worst(self, scores: Any) -> list[float]:
        """Returns each text's highest score. `scores` has one score for each segment."""
        highest = np.zeros(int(self.text.max(initial=-1)) + 1)
        np.maximum.at(highest, self.text, scores)
        found: list[float] = highest.tolist()
        return found


def cut_segments(texts: Sequence[str], inside: Any, shortest: int = 1) -> Segments:
    """Cuts texts into segments. `inside` says which characters are part of words (`word_characters`); words of fewer
    code points than `shortest` are left out."""
    begins: list[int] = []  # of each sentence, in all texts laid together
    ends: list[int] = []
    owners: list[int] = []  # the text of each sentence, then of each group
    together: list[tuple[int, int, int]] = []
    at = 0
    for number, text in enumerate(texts):
        sentences = split_sentences(text)
        count = len(begins)
        together += [(count + first, count + behind - 1, number) for first, behind in group_neighbours(sentences)]
        begins += [at + start for start, _ in sentences]
        ends += [at + end for _, end in sentences]
        owners += [number] * len(sentences)
        at += len(text)
    codes = codes_of("".join(texts))
    borders = np.array(begins, dtype=np.int64)
    word_begins, word_ends = words_in(codes, inside, borders)
    if shortest > 1:
        long = word_ends - word_begins >= shortest
        word_begins, word_ends = word_begins[long], word_ends[long]
    first = np.searchsorted(word_begins, borders)
    behind = np.searchsorted(word_begins, np.array(ends, dtype=np.int64))
    if together:
        firsts, lasts, numbers = np.array(together, dtype=np.int64).T
        first = np.concatenate((first, first[firsts]))
        behind = np.concatenate((behind, behind[lasts]))
        owners += numbers.tolist()
    return Segments(hashes_of(codes, word_begins, word_ends), first, behind, np.array(owners, dtype=np.int64))


def expand_ranges(first: Any, behind: Any) -> tuple[Any, Any]:
    """Returns two arrays with an entry for each index in the ranges [first, behind), range after range: the number of
    the range, and the index."""
    lengths = np.maximum(behind - first, 0)
    row = np.repeat(np.arange(len(lengths)), lengths)
    begins = np.cumsum(lengths) - lengths
    return row, np.arange(len(row)) + (first - begins)[row]


def count_distinct(keys: Any) -> tuple[Any, Any]:
    """Returns the distinct values of (n,) int64, ascending, and how often each occurs. (`numpy.unique` takes twenty
    times as long for a message's worth of them.)"""
    if keys.dtype != np.int32 and len(keys) and keys.max() <= _NARROW_MAX:
        keys = keys.astype(np.int32)  # half the time to sort
    keys = np.sort(keys)
    differs = np.ones(len(keys), dtype=np.bool_)  # from the one before
    np.not_equal(keys[1:], keys[:-1], out=differs[1:])
    starts = np.flatnonzero(differs)
    counts = np.empty(len(starts), dtype=np.int64)
    np.subtract(starts[1:], starts[:-1], out=counts[:-1])
    counts[-1:] = len(keys) - starts[-1:]
    return keys[starts].astype(np.int64), counts
