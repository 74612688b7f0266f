"""The classifiers that policies may ask, as the worker holds them."""

from __future__ import annotations

import pytest

from inference.moderation import classifiers
from inference.moderation.word_hashing import word_characters


def test_toxicity_says_what_its_package_says() -> None:
    texts = [
        "You are a worthless piece of shit.",
        "What a lovely evening.",
        "",
        "Damn it, the dog ate my damn homework!",
    ]
    import profanity_check  # loads its model

    expected = profanity_check.predict_prob(texts)
    assert classifiers.load_classifier("toxicity").judge(texts) == pytest.approx(expected.tolist())


def test_a_few_bad_words_are_not_lost_among_many_good_ones() -> None:
    text = (
        "The weather was mild and we walked along the river. " * 60
        + "Go fuck yourself, asshole. "
        + "Then it rained. " * 60
    )
    assert classifiers.load_classifier("toxicity").judge([text])[0] > 0.9


def test_the_first_message_waits_for_no_table() -> None:
    word_characters.cache_clear()
    model = classifiers.load_classifier("toxicity")
    made = word_characters.cache_info().misses
    model.judge(["Hello there."])
    assert made == word_characters.cache_info().misses == 1


def test_names_are_found_with_their_places() -> None:
    text = "Yesterday Maria Gonzalez flew to London."
    (found,) = classifiers.load_classifier("entities").judge([text])
    assert {(kind, text[start:end]) for kind, start, end, _ in found} >= {
        ("person", "Maria Gonzalez"),
        ("location", "London"),
    }


def test_names_are_not_looked_for_in_endless_texts() -> None:
    """880 kB took so long that the worker was killed for it, with the texts of other tenants."""
    with pytest.raises(ValueError, match="at most"):
        classifiers.load_classifier("entities").judge(["a " * classifiers.NAMES_MAX])
