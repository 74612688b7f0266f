"""Phrase lists: found whatever their case and however the text is split, and nothing else is held back."""

from __future__ import annotations

import pytest

from sessions.turn.keyword_filter import KeywordOutputFilter, KeywordRules


def split_at(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@pytest.mark.parametrize("size", range(1, 9))
def test_an_answer_ends_before_the_phrase_that_begins_first(size: int) -> None:
    output = KeywordOutputFilter(KeywordRules(["red book", "book shelf", "ed"]))
    for piece in split_at("the red book shelf", size):
        limit, verdict = output.feed(piece)
        if verdict.action == "block":
            break
    assert (limit, verdict.action, verdict.start, verdict.end) == (4, "block", 4, 12)


def test_the_beginning_of_a_phrase_is_held_until_it_is_none() -> None:
    output = KeywordOutputFilter(KeywordRules(["red book"]))
    assert output.feed("a red ")[0] == 2
    assert output.feed("boo")[0] == 2
    assert output.feed("t")[0] == 10
    output.feed(" red")
    limit, verdict = output.finish()
    assert (limit, verdict.action) == (14, "pass"), "a text that ends in a beginning is let through"
