"""Encodings of letters and numbers."""

from __future__ import annotations

import base64

import pytest

from inference.moderation.disguise.encodings import base64_lines, code_runs, decodings, readable

PHRASE = "project nightjar"
BYTES = PHRASE.encode()


@pytest.mark.parametrize(
    "word",
    [
        base64.b85encode(BYTES).decode(),
        base64.a85encode(BYTES).decode(),
        f"({base64.a85encode(BYTES, adobe=True).decode()})?",
        base64.b32hexencode(BYTES).decode().lower().rstrip("="),
        "FQv6k4cQXTnmnn5FcfcdVv",
    ],
)
def test_a_word_in_an_encoding_is_read(word: str) -> None:
    if word.startswith("FQ"):  # base58
        digits = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
        number, word = int.from_bytes(BYTES), ""
        while number:
            number, digit = divmod(number, 58)
            word = digits[digit] + word
    assert PHRASE in list(decodings(word))


@pytest.mark.parametrize("form", ["{:02x} ", "0x{:02X}, ", "{:d} ", "{:08b} ", "{:08b}", "{:03o} ", "\\x{:02x} "])
def test_codes_one_by_one_are_read_where_they_stand(form: str) -> None:
    codes = "".join(map(form.format, BYTES)).strip(" ,")
    assert (PHRASE, 4, 4 + len(codes)) in list(code_runs(f"see {codes} there"))


def test_lines_of_base64_are_one() -> None:
    packed = base64.b64encode(PHRASE.encode() * 3).decode()
    text = f"({packed[:20]}\n{packed[20:40]}\n{packed[40:]})"
    assert [made.text for made in base64_lines(text, 0, 21)] == [PHRASE * 3]


@pytest.mark.parametrize(
    "text", ["2026-11-23 10:45:12", "12 34 56 78 90 11 12", "a b c d e f g", "10 20 30", "ff ff ff ff ff ff ff"]
)
def test_numbers_are_no_text(text: str) -> None:
    assert list(code_runs(text)) == []


def test_bytes_are_readable_as_utf_8_and_utf_16() -> None:
    for encoding in ("utf-8", "utf-16", "utf-16-le", "utf-16-be"):
        assert readable(PHRASE.encode(encoding)) == PHRASE
    assert readable(b"\xff\xfe\xff") is None and readable(b"\0\1\2\3\4\5\6\7\x08") is None
