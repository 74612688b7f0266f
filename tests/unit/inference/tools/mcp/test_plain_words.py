"""Strangers' words made plain."""

from __future__ import annotations

import pytest

from inference.tools.mcp.plain_words import plain_words


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("A tool\twith\nlines", "A tool\twith\nlines"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07x\x1b]8;;http://x\x1b\\y", "red xy"),
        ("a\u202eb\u2066c\u200bd\ufeffe\u00ad", "abcde"),
        ("\x00\x07\x9b31m\ud800", "31m"),
        ("\u3164\u115fhidden\U000e0041", "hidden"),
        ("Grüße 日本 🙂", "Grüße 日本 🙂"),
    ],
)
def test_what_is_left(given: str, plain: str) -> None:
    assert plain_words(given, 100) == plain


def test_no_longer_than_it_may_be() -> None:
    assert plain_words("x" * 10_000_000, 5) == "xxxxx"
