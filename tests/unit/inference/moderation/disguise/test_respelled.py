"""Words with their inner letters in another order, or hidden."""

from __future__ import annotations

import pytest

from inference.moderation.disguise.respelled import RespelledWords

WORDS = RespelledWords(("project nightjar", "single", "the blue ledger"))


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("the prjoect nghitajr.", "the project nightjar."),
        ("pr*ject n#ghtjar", "project nightjar"),
        ("(bl_e l.dger)", "(blue ledger)"),
    ],
)
def test_they_are_replaced_by_the_words_that_they_spell(text: str, spelt: str) -> None:
    replaced = WORDS.replace(text)
    assert replaced is not None
    assert replaced[0] == spelt and [text[place] for place in replaced[1]] == list(text)


@pytest.mark.parametrize(
    "text", ["project nightjar", "a plain text", "p*****t", "pr*jects", "sinlge", "", "x*y and 2*3"]
)
def test_other_words_stay(text: str) -> None:
    assert WORDS.replace(text) is None


def test_phrases_of_one_word_have_no_other_order() -> None:
    assert RespelledWords(("casual",)).replace("causal") is None
