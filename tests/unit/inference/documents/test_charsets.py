"""Texts are read in the charset that they are in."""

from __future__ import annotations

import codecs

import pytest

from inference.documents.charsets import decode_text, looks_binary

WORDS = "Füße über Straßen; naïve Œuvre. " * 20


@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"])
def test_charsets(charset: str) -> None:
    content = WORDS.encode(charset)
    assert decode_text(content) == WORDS and not looks_binary(content)


@pytest.mark.parametrize(
    ("charset", "text"),
    [
        ("cp1251", "Быстрая коричневая лиса перепрыгивает через ленивую собаку. " * 10),
        ("shift_jis", "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 10),
        ("gb18030", "道可道，非常道。名可名，非常名。无名天地之始；有名万物之母。" * 10),
    ],
)
def test_charsets_that_are_told_by_their_words(charset: str, text: str) -> None:
    assert decode_text(text.encode(charset)) == text


def test_what_is_broken_is_marked() -> None:
    assert decode_text(codecs.BOM_UTF8 + b"a\xffb") == "a\ufffdb"
    assert "\ufffd" in decode_text(codecs.BOM_UTF16_LE + b"a\0\0\xd8b\0")


def test_binary() -> None:
    assert looks_binary(b"a\0b\1c" * 20) and looks_binary(bytes(range(1, 32)))
    assert not looks_binary(b"") and not looks_binary(b"a\tb\r\n\x1b[0m")
