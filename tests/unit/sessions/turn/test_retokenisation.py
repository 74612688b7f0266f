"""An answer that was changed keeps the ids that it was written with."""

from __future__ import annotations

import random
from itertools import takewhile
from typing import Any, cast

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from sessions.model.generation import EngineInfo, ThoughtMarks
from sessions.model.types import Tokens
from sessions.turn.channels import END, FINAL, THOUGHT
from sessions.turn.retokenisation import as_written, tail_ids

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


class Marking:
    """A tokenizer whose scaffold is one id, 1, and whose texts are their characters."""

    async def text(self, text: str) -> Tokens:
        return [ord(letter) for letter in text]

    async def scaffold(self, text: str) -> Tokens:
        return [1] * bool(text)


async def test_marks_of_channels_behind_the_ledger_are_special_tokens_again() -> None:
    marks = ThoughtMarks(THOUGHT, END, none=FINAL, channels=True)
    info = EngineInfo(
        model="m", build="b", model_fingerprint="f", context_window=100, slots=1, sampling=frozenset(), thoughts=marks
    )
    harmony, tokenizer = msgspec.structs.replace(info, call_format="harmony"), cast(Any, Marking())
    x = ord("x")
    assert await tail_ids(tokenizer, harmony, f"x{END}x") == [x, 1, x]
    assert await tail_ids(tokenizer, harmony, f"{END}x", first=True) == [1, x], "it has the marks that it needs"
    assert await tail_ids(tokenizer, harmony, "x", first=True) == [1, x], "what was rewritten gets a header"
    assert await tail_ids(tokenizer, harmony, "", first=True) == []
    assert await tail_ids(tokenizer, info, "<|") == [ord("<"), ord("|")]
