"""Greek and Cyrillic phrases in letters of other scripts."""

from __future__ import annotations

import pytest

from inference.moderation.disguise.scripts import ScriptPhrases

PHRASES = ScriptPhrases(("тайный проект", "κρυφό σχέδιο"))


@pytest.mark.parametrize(
    "text", ["τайный πρоεκτ", "т@йный пр0€кт", "ⲕⲣⲩⲫό ⲥⲭέⲇⲓⲟ", "ᴋᴩʏφό σχέδɪᴏ", "убкоьк рспжлу", "λσφχό τψέεκπ"]
)
def test_a_phrase_in_other_letters_is_found(text: str) -> None:
    assert [*PHRASES.find(f"вот {text} .")]


@pytest.mark.parametrize("text", ["тайный проект", "тайна и просьба", "an ordinary text", "κρυφό γράμμα"])
def test_plain_text_is_not(text: str) -> None:
    assert not [*PHRASES.find(text)]
