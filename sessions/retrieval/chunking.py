"""Cuts a document into chunks by its structure and its tokens; each knows its place in the document's text.

Cuts are made where a heading begins, else between paragraphs, lines or sentences, as far back as half a chunk; only a
text without such places is cut between any two tokens. Neighbours share up to `overlap` tokens, which also begin at
such a place if there is one.

Invariants: every token is in a chunk; a chunk has at most `tokens_max` of them; chunks begin and end later than the
ones before; `text[start:end]` is the chunk. Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

import msgspec

from sessions.retrieval.embedding import TokenSpans

_BREAKS: Final = (
    (4, re.compile(r"^(?:#{1,6} |\f)", re.MULTILINE)),
    (3, re.compile(r"\n[ \t]*\n\s*")),
    (2, re.compile(r"\n")),
    (1, re.compile(r"[.!?。！？…]['\"»”)\]]*\s+")),
)


class Chunking(msgspec.Struct, frozen=True):
    """The greatest length of chunks, and how much neighbours overlap, in tokens of the embedding model."""

    tokens_max: int = 200
    overlap: int = 40


class DocumentChunk(msgspec.Struct, frozen=True):
    """A chunk of a document: the code points `start` to `end` of its text."""

    start: int
    end: int


def _strengths(text: str, spans: TokenSpans) -> bytearray:
    """Returns for each token how good a place it is to begin a chunk, from 1 to 4 (best); 0 if a chunk may begin there
    only for want of another place."""
    strengths = bytearray(len(spans.starts))
    for strength, pattern in _BREAKS:
        for match in pattern.finditer(text):
            at = bisect_left(spans.starts, match.start() if strength == 4 else match.end())
            if at < len(strengths) and strengths[at] < strength:
                strengths[at] = strength
    return strengths


def chunks(text: str, spans: TokenSpans, how: Chunking) -> Iterator[DocumentChunk]:
    """Yields the chunks of a text whose tokens are `spans`; none if it has no tokens."""
    starts, ends = spans.starts, spans.ends
    strengths, begin = _strengths(text, spans), 0
    while begin < len(starts):
        end = min(begin + how.tokens_max, len(starts))
        if end < len(starts):
            earliest = begin + max(how.tokens_max // 2, how.overlap + 1)
            end = max(range(min(earliest, end), end + 1), key=lambda at: (strengths[at], at))
        yield DocumentChunk(starts[begin], max(ends[begin:end]))
        if end == len(starts):
            return
        shared = range(max(begin + 1, end - how.overlap), end + 1)
        begin = max(shared, key=lambda at: (strengths[at] > 0, -at))
