"""An answer that was changed keeps the ids that it was written with."""

from __future__ import annotations

import random
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from sessions.turn.retokenisation import as_written

PIECES = ("a", "b", "ab", "ba", "aab")


def segmentations() -> st.SearchStrategy[tuple[list[int], list[int]]]:
    """Two ways to write one text in pieces."""

    def both(text: str) -> st.SearchStrategy[tuple[list[int], list[int]]]:
        one = st.randoms(use_true_random=False).map(lambda rng: split(text, rng))
        return st.tuples(one, one)

    return st.text("ab", max_size=20).flatmap(both)


def split(text: str, rng: random.Random) -> list[int]:
    pieces = []
    while text:
        pieces.append(rng.choice([number for number, piece in enumerate(PIECES) if text.startswith(piece)]))
        text = text[len(PIECES[pieces[-1]]) :]
    return pieces


def joined(pieces: list[int]) -> str:
    return "".join(PIECES[piece] for piece in pieces)


def common(left: list[int], right: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


@given(segmentations(), st.integers(0, 20), st.lists(st.integers(0, len(PIECES) - 1), max_size=5))
def test_an_answer_that_was_changed_keeps_its_text_and_the_ids_that_it_was_written_with(
    both: tuple[list[int], list[int]], cut: int, more: list[int]
) -> None:
    read, written = both
    changed = [*read[:cut], *more]
    made = as_written(changed, read, written)
    if made is not None:
        assert joined(made) == joined(changed)
    behind = common(read[::-1], written[::-1])
    shared = common(changed, read)
    if read != written and shared >= len(read) - behind:
        kept = len(written) - (len(read) - shared)
        assert made is not None and made[:kept] == written[:kept], "what stands before the change is as it was written"
