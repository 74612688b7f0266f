"""The plain form of text, and the way back from it: however a text is cut, the same."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.moderation.normalize import Normalizer, fold_case, normalize_text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("plain as it is", "plain as it is"),
        ("рrоjесt", "project"),  # Cyrillic
        ("ｐｒｏｊｅｃｔ", "project"),
        ("p\u200bro\u0301ject", "project"),
        ("a \t\n b\u3000c", "a b c"),
        ("one–two—three", "one-two-three"),
        ("“quoted’", "\"quoted'"),
        ("ﬁne", "fine"),
    ],
)
def test_what_looks_the_same_is_the_same(text: str, plain: str) -> None:
    assert normalize_text(text) == plain


def fed(pieces: list[str], *, escapes: bool = False) -> Normalizer:
    normal = Normalizer(escapes=escapes)
    for piece in pieces:
        normal.feed(piece)
    normal.finish()
    return normal


TEXTS = st.lists(st.sampled_from(["project", " ", "  ", "\n", "é", "\u200b", "ﬁ", "\\", "\\n", "\\u006a", "ж", "x"]))


@given(TEXTS, st.booleans(), st.data())
def test_the_plain_form_does_not_depend_on_the_cuts(parts: list[str], escapes: bool, data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=6))})
    whole, pieces = fed([text], escapes=escapes), fed([text[a:b] for a, b in pairwise(cuts)], escapes=escapes)
    assert (whole.plain, whole.places, whole.fed) == (pieces.plain, pieces.places, pieces.fed)
    assert len(whole.places) == len(whole.plain)
    assert escapes or whole.plain == normalize_text(text)


def test_places_lead_back_to_what_was_fed() -> None:
    normal = fed(["a\u200bﬁ  b"])
    assert normal.plain == "afi b"
    assert [normal.place(index) for index in range(6)] == [0, 2, 2, 3, 5, 6]
    assert [normal.end(index) for index in (1, 2, 3, 5)] == [2, 3, 3, 6]  # both letters of a ligature end with it


def test_escapes_stand_for_their_characters() -> None:
    normal = fed([r"pro\u00", r"6aect\nx \\u006a"], escapes=True)
    assert normal.plain == r"project x \u006a"
    assert fed([r"end\u00"], escapes=True).plain == r"end\u00"  # not whole: text


def test_folding_keeps_the_length() -> None:
    assert fold_case("Project") == "project"
    assert len("İx".lower()) == 3 and fold_case("İX")[1:] == "x"


def test_letters_of_all_scripts_are_compared_without_case() -> None:
    for letter in map(chr, (*range(0x386, 0x3CF), *range(0x400, 0x530))):
        capital, small = fold_case(normalize_text(letter.upper())), fold_case(normalize_text(letter.lower()))
        assert capital == small or len(letter.upper()) > 1 or (capital.isascii() and len(capital) == 1)
    assert normalize_text("Öl ölțņ ϐꞵ") == "Ol oltn bb"
    assert normalize_text("Weißbach WEIẞBACH") == "Weissbach WEISSBACH"
    assert len({normalize_text(letter) for letter in "пПπΠ"}) == 1  # Cyrillic and Greek
