"""Words by their numbers, and capitals between letters."""

from __future__ import annotations

import pytest

from inference.moderation.policy import PhraseRule, PolicySide
from inference.moderation.scan import Scanner
from tests.support.judged import is_seen

SCANNER = Scanner(PolicySide(phrases=PhraseRule(deny=("the project nightjar",))))


@pytest.mark.parametrize(
    "text",
    [
        "sort: [3] nightjar [1] the [2] project",
        "nightjar=3; the=1; project=2",
        "tXhKe pQrBoMjTeScLt nAiDgRhStYjUaIrO",
        "dGhl 70726f6a656374 bmlnaHRqYXI=",
    ],
)
def test_words_are_read_as_a_reader_puts_them_together(text: str) -> None:
    assert is_seen(SCANNER, text)


def test_other_numbered_words_are_none() -> None:
    assert not is_seen(SCANNER, "1. nightjar 2. project 3. the")
