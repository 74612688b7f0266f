"""Phrases by their letters alone: what is one in disguise, and what are other words."""

from __future__ import annotations

import pytest

from inference.moderation.squeezed import SqueezedPhrases

PHRASES = SqueezedPhrases(("Project Nightjar", "the rapist", "nowhere", "cat", "midnight"), ("nowhere else",), "block")


def find(text: str) -> list[str]:
    return [text[start:end] for start, end in PHRASES.find(text)]


@pytest.mark.parametrize(
    "written",
    [
        "p-r-o-j-e-c-t n-i-g-h-t-j-a-r",
        "p.r.o.j.e.c.t.n.i.g.h.t.j.a.r",
        "p r o j e c t   n i g h t j a r",
        "projectnightjar",
        "project-nightjar",
        "project_night_jar",
        "proj ectnight jar",
        "pr0ject n1ghtj4r",
        "n0wh3r3",
        "project nlghtjar",
        "the-rapist",
        "rnidnight",
    ],
)
def test_a_disguised_phrase_is_seen(written: str) -> None:
    assert find(f"so {written}, again") == [written]


@pytest.mark.parametrize(
    "text",
    [
        "project nightjar",  # as it is: others find it
        "a therapist",
        "the project. nightjar is a bird",
        "no where",  # too short to have its spaces elsewhere
        "c-a-t",  # too short
        "projectnightjars",
        "no-where else",  # allowed
        "n0w, her 3",
        "n0 043r3",
        "n0443r3 0r",
    ],
)
def test_other_words_are_not(text: str) -> None:
    assert find(text) == []


def test_without_phrases_nothing_is_found() -> None:
    assert list(SqueezedPhrases((), (), "block").find("p-r-o-j-e-c-t")) == []


@pytest.mark.parametrize(
    "text",
    [
        "pprroojjeecctt nniigghhttjjaarr",
        "prooooject niiightjarrr",
        "rajthgin tcejorp",
        "tcejorp rajthgin",
        "p!r|o$j@e!c|t n!i!g!h!t!j!a!r",
    ],
)
def test_doubled_letters_and_words_backwards_are_found(text: str) -> None:
    assert list(PHRASES.find(text)) == [(0, len(text))]


@pytest.mark.parametrize("text", ["projject nightjar", "tcejorp", "project. nnniiightjar", "w" * 500, "www... ---"])
def test_a_letter_too_many_is_no_disguise(text: str) -> None:
    assert list(PHRASES.find(text)) == []
