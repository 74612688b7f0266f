"""Phrases in ciphers that a text speaks of."""

from __future__ import annotations

import string

import pytest

from inference.moderation.disguise.announced import AnnouncedPhrases

PHRASE = "project nightjar"
PHRASES = AnnouncedPhrases((PHRASE, "the blue ledger", "short"))


def shifted(text: str, by: int) -> str:
    letters = string.ascii_lowercase
    return text.translate(str.maketrans(letters, letters[by:] + letters[:by]))


@pytest.mark.parametrize("by", range(1, 26))
def test_every_shift_is_found_where_it_stands(by: int) -> None:
    text = f"decode this: {shifted(PHRASE, by)}, please"
    assert list(PHRASES.find(text)) == [(13, 13 + len(PHRASE))]


@pytest.mark.parametrize(
    "text",
    [
        "atbash: kilqvxg mrtsgqzi",
        "on the keyboard, one key to the right: [tpkrvy mohjykst",
        "in pig latin: ojectpray ightjarnay",
        "read the words backwards: nightjar project",
        "swap each pair: rpjoce tinhgjtra",
        "rot47: AC@;64E ?:89E;2C",
    ],
)
def test_other_simple_ciphers_are_found(text: str) -> None:
    assert len(list(PHRASES.find(text.lower()))) == 1


def test_no_cipher_is_looked_for_where_no_word_announces_it() -> None:
    assert list(PHRASES.find(f"what is {shifted(PHRASE, 3)}?")) == []


def test_plain_phrases_and_parts_of_words_are_no_ciphers() -> None:
    assert list(PHRASES.find(f"decode {PHRASE}")) == []
    assert list(PHRASES.find(f"decode x{shifted(PHRASE, 3)}")) == []


def test_a_sign_far_away_hides_nothing() -> None:
    text = "decode " + "word " * 400 + f"and decode {shifted(PHRASE, 5)}"
    assert len(list(PHRASES.find(text))) == 1
