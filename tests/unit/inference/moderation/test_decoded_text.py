"""Encodings are undone once, and what is found in them has its place in the text as it came."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.moderation.decoded_text import decode_text

PACKED = base64.b64encode("a näht jar".encode()).decode()


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("a &lt;b&gt; &#112;&#x72;&#000111;&eacute", "a <b> proé"),
        ("100%, &nosuch; & \\d", None),
        ("a%20b %2570 %C3%A9", "a b %70 é"),  # once
        (r"{\"q\": \"\u0070\u0072\"}", r"{\"q\": \"pr\"}"),
        (f"see {PACKED}!", "see a näht jar!"),
        (f"see {PACKED.rstrip('=')}", "see a näht jar"),
        ("internationalization of /usr/local/bin/things", None),
        ("hi " + "".join(chr(0xE0000 + ord(each)) for each in "jar"), "hi jar"),
        ("x" + "".join(chr(0xE0100 + byte - 16) for byte in b"jars"), "xjars"),
        ("\ud800 %41", "\ud800 A"),
        ("", None),
        ("plain", None),
    ],
)
def test_encodings_are_undone(text: str, decoded: str | None) -> None:
    assert (made.text if (made := decode_text(text)) else None) == decoded


PARTS = st.sampled_from(["word ", "&amp;", "&#112", "%41", "\\u0041", PACKED, "\U000e0041", "é", "=", "-", "/x"])


@given(st.lists(PARTS, max_size=12))
def test_spans_lie_in_the_text_and_what_is_no_piece_is_the_same(parts: list[str]) -> None:
    text = "".join(parts)
    if (made := decode_text(text)) is None:
        return
    last = 0
    for index, character in enumerate(made.text):
        start, end = made.span(index, index + 1)
        assert last <= end and 0 <= start < end <= len(text)
        assert end - start > 1 or text[start] in (character, "\U000e0041")
        last = start
    assert made.span(0, len(made.text))[0] >= 0
