"""Encodings of letters and numbers."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

import pytest

from inference.moderation.disguise.encodings import code_runs, decodings, lines_of, parts_of, readable, uuencoded

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


@pytest.mark.parametrize(
    "form",
    ["{:02x} ", "0x{:02X}, ", "{:d} ", "{:08b} ", "{:08b}", "{:03o} ", "\\x{:02x} ", "0b{:b} ", "{:07b} ", "0o{:o} "],
)
def test_codes_one_by_one_are_read_where_they_stand(form: str) -> None:
    codes = "".join(map(form.format, BYTES)).strip(" ,")
    assert (PHRASE, 4, 4 + len(codes)) in list(code_runs(f"see {codes} there"))


@pytest.mark.parametrize(
    "form", ["chr({:d})+", "CHR({:d}) || ", "[char]{:d}+", "ChrW({:d}) & ", "[{:d}]", "'\\x{:02x}', ", "\\{:d}"]
)
def test_codes_in_calls_are_read(form: str) -> None:
    codes = "".join(map(form.format, BYTES))
    assert PHRASE in [made.text for made in code_runs(f"print {codes} there")]


@pytest.mark.parametrize("length", [4, 8])
def test_groups_of_hexadecimal_digits_are_bytes(length: int) -> None:
    digits = BYTES.hex()
    groups = " ".join(digits[at : at + length] for at in range(0, len(digits), length))
    assert PHRASE in [made.text for made in code_runs(groups)]


@pytest.mark.parametrize("encode", [base64.b64encode, base64.b32encode])
def test_an_encoded_text_in_lines_is_one(encode: Callable[[bytes], bytes]) -> None:
    packed = encode(PHRASE.encode() * 3).decode()
    text = f"({packed[:20]}\n{packed[20:40]}\n{packed[40:]})"
    whole = next(made for made in lines_of(text, 0, 21) if made.text in (packed, packed.rstrip("=")))
    assert text[whole.start : whole.end].replace("\n", "") == whole.text


def test_what_stands_behind_whole_lines_is_no_part_of_them() -> None:
    packed = base64.b32encode(PHRASE.encode() * 3).decode().rstrip("=")
    text = f"{packed[:40]} {packed[40:]} and"
    assert packed in [made.text for made in lines_of(text, 0, 40)]


def test_parts_of_one_length_are_one_text() -> None:
    packed = base64.b64encode(PHRASE.encode() * 2).decode()
    parts = " ".join(packed[at : at + 4] for at in range(0, len(packed), 4))
    assert packed in [made.text for made in parts_of(f"see {parts}")] or packed in [
        made.text for made in parts_of(parts)
    ]
    assert list(parts_of("they said that what goes once must come back")) == []


def test_uuencoded_lines_are_read() -> None:
    lines = binascii.b2a_uu(BYTES).decode()
    assert [made.text for made in uuencoded(f"see begin 644 note\n{lines}`\nend")] == [PHRASE]
    assert list(uuencoded("we begin 644 times\nto end")) == []


@pytest.mark.parametrize(
    "text", ["2026-11-23 10:45:12", "12 34 56 78 90 11 12", "a b c d e f g", "10 20 30", "ff ff ff ff ff ff ff"]
)
def test_numbers_are_no_text(text: str) -> None:
    assert list(code_runs(text)) == []


def test_bytes_are_readable_as_utf_8_and_utf_16() -> None:
    for encoding in ("utf-8", "utf-16", "utf-16-le", "utf-16-be"):
        assert readable(PHRASE.encode(encoding)) == PHRASE
    assert readable(b"\xff\xfe\xff") is None and readable(b"\0\1\2\3\4\5\6\7\x08") is None
