"""Chunks of documents: every token in one, none too long, cut where the text has a place for it."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sessions.retrieval.chunking import Chunking, chunks
from sessions.retrieval.embedding import TokenSpans

PLAIN = st.text(alphabet="ab .\n#é漢!?", max_size=400)


def spans_of(text: str) -> TokenSpans:
    found = [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]
    return TokenSpans(tuple(begin for begin, _ in found), tuple(end for _, end in found))


@given(PLAIN, st.integers(2, 40), st.integers(0, 20))
def test_every_token_is_in_a_chunk_and_no_chunk_is_too_long(text: str, tokens_max: int, overlap: int) -> None:
    spans = spans_of(text)
    how = Chunking(tokens_max, min(overlap, tokens_max // 2))
    made = list(chunks(text, spans, how))
    covered = {at for each in made for at, begin in enumerate(spans.starts) if each.start <= begin < each.end}
    assert covered == set(range(len(spans.starts)))
    assert all(each.tokens <= tokens_max and each.start < each.end for each in made)
    assert [each.start for each in made] == sorted({each.start for each in made})
    assert [each.end for each in made] == sorted({each.end for each in made})


def test_a_cut_is_where_a_heading_begins_else_between_sentences() -> None:
    text = "# One\n\nFirst words here. More of them.\n\n## Two\n\nSecond words here. More of them again and again."
    made = [text[each.start : each.end] for each in chunks(text, spans_of(text), Chunking(14, 0))]
    assert made[0].endswith("More of them.") and made[1].startswith("## Two")
    plain = "One two three four. Five six seven eight. Nine ten eleven twelve."
    said = [plain[each.start : each.end] for each in chunks(plain, spans_of(plain), Chunking(8, 0))]
    assert said == ["One two three four.", "Five six seven eight.", "Nine ten eleven twelve."]


def test_neighbours_share_the_end_of_the_one_before() -> None:
    text = " ".join(f"Sentence number {number} is here." for number in range(20))
    made = list(chunks(text, spans_of(text), Chunking(24, 8)))
    assert all(first.end > second.start > first.start for first, second in pairwise(made))
    assert all(text[each.start :].startswith("Sentence") for each in made)
