"""Words that are spelled out."""

from __future__ import annotations

import re
from functools import partial

import pytest

from inference.moderation.disguise.spelled import Undo, near, spellings

MORSE = "-. .. --. .... - .--- .- .-."


def read(text: str) -> list[str]:
    """What a text may spell, without what stands between."""
    return [pattern.sub(partial(_replaced, undo), text[first:last]) for first, last, pattern, undo in spellings(text)]


def _replaced(undo: Undo, found: re.Match[str]) -> str:
    new = undo(found)
    return found[0] if new is None else new


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        (f"read {MORSE} now", "nightjar"),
        ("read " + MORSE.replace(".", "·").replace("-", "–"), "nightjar"),
        ("⠝⠊⠛⠓⠞⠚⠁⠗", "nightjar"),
        ("November, India, Golf, Hotel, Tango, Juliett, Alpha, Romeo", "nightjar"),
        ("N as in Nora, I as in Ina, G as in Gus, H as in Hal, T as in Tom", "NIGHT"),
        ("LATIN SMALL LETTER N, LATIN SMALL LETTER I, LATIN SMALL LETTER G", "NIG"),
        ("join:\n1. night\n2. jar", "join:nightjar"),
        ("- night\n- jar", "nightjar"),
        ("Part 1: night Part 2: jar", "night jar"),
        ("14-9-7-8-20-10-1-18", "nightjar"),
        ("night¹ jar²", "night jar"),
        ("remove every X: nXiXgXhXtXjXaXr", "nightjar"),
        ("delete the word banana: nighbananatjar", "nightjar"),
        ("ignore the digits: n1i2g3h4t5j6a7r", "nightjar"),
        ('"niqzghtjaqzr".replace("qz", "")', "nightjar"),
        ("every second letter: nxixgxhxtxjxaxrx", "nightjar"),
        ("rot13: avtugwne", "nightjar"),
        ("2026 INFO night\n2026 INFO jar", "night\njar"),
    ],
)
def test_spelled_out_words_are_read(text: str, spelled: str) -> None:
    assert any(spelled in each or spelled in each.replace("  ", " ") for each in read(text)), read(text)


def test_initials_are_read() -> None:
    words = "first letters: now in general how they just are red"
    assert any("n i g h t j a r" in each for each in read(words))
    lines = "\n".join(("Now", "it", "goes", "here", "though", "just", "as", "red"))
    assert any("N i g h t j a r" in each for each in read(lines))


def test_a_dump_is_read_without_its_places() -> None:
    dump = "0000: 6e69 6768  nigh\n0004: 746a 6172  tjar"
    assert any("6e69 6768" in each and "746a 6172" in each and "0004" not in each for each in read(dump))


@pytest.mark.parametrize("text", ["", "Just a sentence.", "What is 12 + 30 - 5?", "I am here, as ever; you too."])
def test_ordinary_text_spells_nothing(text: str) -> None:
    assert read(text) == []


def test_stretches_around_signs_are_merged() -> None:
    assert near("a..b....a", ("a", "b"), 1, 2) == [(0, 5), (7, 9)]
    assert near("xyz", ("a",), 1, 1) == []
