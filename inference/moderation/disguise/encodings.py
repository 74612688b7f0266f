"""Texts in encodings of letters and numbers that models read: base85, base58, base32hex, UTF-16, and codes one by one.

`decodings` undoes what a word without spaces may be; `code_runs` and `base64_lines` what goes over spaces: characters
as hexadecimal, decimal, octal or binary codes, and lines of base64. Only what comes out readable counts. Pure.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

LENGTH_MAX: Final = 8_192
_BASE58_MAX: Final = 512  # its time grows with the square
_BASE58_DIGITS: Final = {
    each: value for value, each in enumerate("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz")
}
_BASE58: Final = re.compile(r"(?<![A-Za-z0-9])[1-9A-HJ-NP-Za-km-z]{12,512}(?![A-Za-z0-9])")
_BASE32HEX: Final = re.compile(r"(?<![A-Za-z0-9])(?:[A-V0-9]{14,}|[a-v0-9]{14,})={0,6}(?![A-Za-z0-9])")
_LINES: Final = re.compile(r"[A-Za-z0-9+/_-]{10,}(?:\s{1,2}[A-Za-z0-9+/_-]{12,})*\s{1,2}[A-Za-z0-9+/_-]{1,}={0,2}")
_TAIL: Final = re.compile(r"[A-Za-z0-9+/_-]{10,}\Z")
_MIXED: Final = re.compile(r"[a-z][A-Z]|[A-Z]{2}|[0-9]")
_SEPARATOR: Final = r"[,;:|_\s-]{1,3}"
_CODES: Final = re.compile(
    rf"(?<![0-9A-Za-z])(?:(?P<binary>[01]{{8}}(?:{_SEPARATOR}[01]{{8}}){{5,}}|(?:[01]{{8}}){{6,}})"
    rf"|(?:0[xX]|\\x|\\)?[0-9a-fA-F]{{2,5}}(?:{_SEPARATOR}(?:0[xX]|\\x|\\)?[0-9a-fA-F]{{2,5}}){{5,}})(?![0-9A-Za-z])"
)
_CODE_SIGN: Final = re.compile(
    rf"[0-9](?:[0-9a-fA-F]{{1,2}}{_SEPARATOR}(?:0[xX]|\\x|\\)?[0-9][0-9a-fA-F]{{1,7}}{_SEPARATOR}|[01]{{23}})"
)


class Decoded(NamedTuple):
    """A text, and where it stood encoded."""

    text: str
    start: int
    end: int


def readable(data: bytes) -> str | None:
    """The text that bytes are, in UTF-8 or UTF-16; None where they are none."""
    for encoding in _encodings(data):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        seen = sum(each.isprintable() or each in "\r\n\t\u200d" or not each.isascii() for each in text)
        if seen >= 0.95 * len(text) and "\0" not in text:
            return text
    return None


def _encodings(data: bytes) -> tuple[str, ...]:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return ("utf-16",)
    if len(data) >= 8 and len(data) % 2 == 0:
        if not any(data[1::2]):
            return ("utf-16-le",)
        if not any(data[::2]):
            return ("utf-16-be",)
    return ("utf-8",)


def decodings(word: str) -> Iterator[str]:
    """The readable texts that a word may be in base85, base58 and base32hex."""
    for run in _BASE58.findall(word):
        if not run.isalpha() or not run.istitle():
            yield from _tried(_base58, run)
    for run in _BASE32HEX.findall(word):
        yield from _tried(_base32hex, run)
    if len(word) <= LENGTH_MAX:
        for inner in dict.fromkeys((word, word.strip("().,;:!?\"'"), word.partition("<~")[2].partition("~>")[0])):
            yield from _tried(base64.b85decode, inner)
            yield from _tried(base64.a85decode, inner)


def _tried(decode: Callable[[str], bytes], word: str) -> Iterator[str]:
    try:
        text = readable(decode(word))
    except (ValueError, binascii.Error):
        return
    if text is not None and len(text) >= 8:
        yield text


def _base58(run: str) -> bytes:
    number = 0
    for each in run:
        number = number * 58 + _BASE58_DIGITS[each]
    return number.to_bytes((number.bit_length() + 7) // 8)


def _base32hex(run: str) -> bytes:
    packed = run.rstrip("=").upper()
    return base64.b32hexdecode(packed + "=" * (-len(packed) % 8))


def code_runs(text: str) -> Iterator[Decoded]:
    """What runs of codes may be."""
    if _CODE_SIGN.search(text):
        for found in _CODES.finditer(text):
            yield from (Decoded(made, *found.span()) for made in _spelled(found))


def base64_lines(text: str, start: int, end: int) -> Iterator[Decoded]:
    """What base64 in several lines, which begins at the end of this word, may be."""
    tail = _TAIL.search(text, start, end)
    found = _LINES.match(text, tail.start()) if tail is not None and _MIXED.search(tail[0]) else None
    if found is None or len(found[0]) > LENGTH_MAX:
        return
    packed = re.sub(r"\s", "", found[0]).rstrip("=").replace("-", "+").replace("_", "/")
    packed = packed[: len(packed) - (len(packed) % 4 == 1)]
    for made in _tried(base64.b64decode, packed + "=" * (-len(packed) % 4)):
        yield Decoded(made, *found.span())


def _spelled(found: re.Match[str]) -> Iterator[str]:
    """What a run may be: the same digits may be decimal, hexadecimal and octal."""
    if run := found["binary"]:
        digits = re.sub("[^01]", "", run)
        texts = [readable(int(digits, 2).to_bytes(len(digits) // 8))]
    else:
        codes = re.findall(r"[0-9a-fA-F]+", re.sub(r"0[xX]|\\x", " ", found[0]))
        texts = [_characters(codes, base) for base in (10, 8, 16)]
    yield from (text for text in texts if text is not None)


def _characters(codes: Sequence[str], base: int) -> str | None:
    """The text of codes: of bytes, or of code points where some are none."""
    try:
        values = [int(each, base) for each in codes]
    except ValueError:
        return None
    if sum(each >= 32 for each in values) < 0.95 * len(values):
        return None
    if max(values) < 256:
        return readable(bytes(values))
    if base == 8 or any(0xD800 <= each < 0xE000 or each > 0x10FFFF for each in values):
        return None
    text = "".join(map(chr, values))
    return text if sum(each.isprintable() for each in text) >= 0.95 * len(text) else None
