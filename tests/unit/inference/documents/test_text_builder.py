"""Texts and sections within limits, of signs that every log can hold."""

from __future__ import annotations

import pytest

from inference.documents import text_builder
from inference.documents.text_builder import TextBuilder, TextFull, clean_text


def test_a_text_beyond_its_limit_is_cut() -> None:
    builder = TextBuilder(5)
    builder.put("abc")
    with pytest.raises(TextFull):
        builder.put("defg")
    made = builder.finish("text/plain")
    assert made.text == "abcde" and made.cut


def test_sections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_builder, "SECTIONS_MAX", 2)
    builder = TextBuilder()
    builder.begin("page", 1)
    builder.begin("page", 2)
    with pytest.raises(TextFull):
        builder.begin("page", 3)
    assert builder.finish("text/plain").cut


def test_what_no_log_can_hold_is_left_out() -> None:
    assert clean_text("a\0b\r\nc\rd\u2028e\ud800f\u202eg\x1bh\ti") == "ab\nc\nd\nefgh\ti"
    clean_text("a\ud800").encode()
