"""One pattern for many phrases."""

from __future__ import annotations

import re

from inference.moderation.phrase_tree import any_of


def test_the_longest_phrase_at_a_place_is_matched() -> None:
    pattern = re.compile(any_of(["nightjar", "night", "nightjars", "day (one)"]))
    assert [found[0] for found in pattern.finditer("night nightjar nightjars nigh day (one)")] == [
        "night",
        "nightjar",
        "nightjars",
        "day (one)",
    ]


def test_a_long_phrase_is_no_deep_pattern() -> None:
    phrase = "a" * 2_000
    assert re.compile(any_of([phrase])).fullmatch(phrase)
