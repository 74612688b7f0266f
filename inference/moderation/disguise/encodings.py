"""Texts in encodings of letters and numbers that models read: base85, base58, base32hex, UTF-16, and codes one by one.

`decodings` undoes what a word without spaces may be; `code_runs` what goes over spaces: characters as hexadecimal,
decimal, octal or binary codes, also in calls. `lines_of` and `parts_of` put an encoded text together that was cut;
`uuencoded` reads lines of uuencode. Only what comes out readable counts. Pure.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Final, NamedTuple

LENGTH_MAX: Final = 8_192
_BASE58_MAX: Final = 512  # its time grows with the square
_BASE58_DIGITS: Final = {
    each: value for value, each in enumerate("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz")
}
_BASE58: Final = re.compile(r"(?<![A-Za-z0-9])[1-9A-HJ-NP-Za-km-z]{12,512}(?![A-Za-z0-9])")
_BASE32HEX: Final = re.compile(r"(?<![A-Za-z0-9])(?:[A-V0-9]{14,}|[a-v0-9]{14,})={0,6}(?![A-Za-z0-9])")
_LINES: Final = re.compile(
    r"[A-Za-z0-9+/_-]{10,}(?:\s{1,2}[A-Za-z0-9+/_-]{12,})*(?P<tail>\s{1,2}[A-Za-z0-9+/_-]{1,}={0,6})?"
)
_TAIL: Final = re.compile(r"[A-Za-z0-9+/_-]{10,}\Z")
_MIXED: Final = re.compile(r"[a-z][A-Z]|[A-Z]{2}|[0-9]")
_SEPARATOR: Final = r"[,;:|_\s-]{1,3}"
_ONE: Final = r"(?:0[xXbBoO]|\\x|\\)?[0-9a-fA-F]{2,16}"
_CODES: Final = re.compile(
    r"[0-9a-fA-F\\](?<![0-9A-Za-z].)(?:"
    rf"(?P<binary>(?<=[01])[01]{{7}}(?:{_SEPARATOR}[01]{{8}}){{5,}}|(?<=[01])[01]{{7}}(?:[01]{{8}}){{5,}})"
    r"|(?:(?<=0)[xXbBoO][0-9a-fA-F]{2,16}|(?<=\\)x?[0-9a-fA-F]{2,16}|(?<=[0-9a-fA-F])[0-9a-fA-F]{1,15})"
    rf"(?:{_SEPARATOR}{_ONE}){{4,}}"
    rf"|(?<=[0-9a-fA-F])[0-9a-fA-F]{{5,15}}(?:{_SEPARATOR}[0-9a-fA-F]{{6,16}}){{2,}})(?![0-9A-Za-z])"
)
_CODE_SIGN: Final = re.compile(
    rf"[0-9](?:[bBoOxX]?[0-9a-fA-F]{{1,8}}{_SEPARATOR}(?:0[xXbBoO]|\\x|\\)?[0-9][0-9a-fA-F]{{1,8}}{_SEPARATOR}(?:0[xXbBoO]|\\x|\\)?[0-9]"
    rf"|[0-9a-fA-F]{{5,15}}{_SEPARATOR}[0-9a-fA-F]{{6,16}}{_SEPARATOR}|[01]{{23}})"
)
_UTF8_SIGNS: Final = ("d0", "D0", "cf", "CF")  # Cyrillic and Greek letters begin so
_UTF8_SIGN: Final = re.compile(rf"(?i:c[ef]|d[01]){_SEPARATOR}(?i:[89ab][0-9a-f]){_SEPARATOR}(?i:c[ef]|d[01])")
_CODE: Final = re.compile(r"(?<![0-9A-WYZa-wyz])(?:0[xXbBoO])?[0-9][0-9a-fA-F]{1,4}(?![0-9A-Za-z])")
_GLUED: Final = re.compile(  # codes with the same between them, as a call has it
    r"[0-9](?<![0-9A-WYZa-wyz].)(?:[xXbBoO][0-9])?[0-9a-fA-F]{1,4}(?P<glue>[^0-9A-Za-z][^\d\n]{0,23}?)(?:0[xXbBoO])?[0-9][0-9a-fA-F]{1,4}"
    r"(?:(?P=glue)(?:0[xXbBoO])?[0-9][0-9a-fA-F]{1,4}){4,}"
)
PARTED_MAX: Final = 4_096
_PARTS_MIN: Final = 4
_INSIDE_WORD: Final = re.compile(r"[A-Z0-9](?<=[a-z].)|[a-z](?<=[A-Z0-9].)(?<=\w\w.)")
_UUENCODED: Final = re.compile(r"begin \d{3} [^\n]{0,80}\n(?P<lines>(?:[ -`]{2,61}\n){1,100})`?\n?end")
_BEFORE_SIGN: Final = 64  # code points before a sign of codes in which their run may begin
_GLUES: Final = "([{'\"\\"
_GLUE_WORDS: Final = (" then ", " and ")
_GLUED_MIN: Final = 6
_DIGITS: Final = "0123456789"
_SMALL: Final = "abcdefghijklmnopqrstuvwxyz"
_ALNUMS: Final = tuple(  # base62 in both orders of letters
    {each: value for value, each in enumerate(_DIGITS + letters)}
    for letters in (_SMALL + _SMALL.upper(), _SMALL.upper() + _SMALL)
)
_CODED: Final = re.compile("[A-Z0-9]")
_CODED_MIN: Final = 3  # capitals and digits in a word that is a number in a large base
_ALNUM: Final = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{12,512}(?![A-Za-z0-9])")


_CODED_SIGN: Final = re.compile(
    r"=(?=[\s,.;:)\"']|\Z)(?<=[A-Za-z0-9=].)|[A-Z0-9](?<=[a-z].)|[0-9](?<=\d.)[0-9a-f]|[a-z](?<=\d[A-Z].)|[A-Z](?<=[A-Z].)[a-z]"
)
_CODED_WORD: Final = re.compile(
    r"(?<![A-Za-z0-9+/_%=-])(?=[a-z]{0,8}[A-Z0-9])[A-Za-z0-9+/_-]{2,200}={0,2}(?![A-Za-z0-9+/_%=-])"
)
_CODED_WORDS_MIN: Final = 2
_CODED_WORDS_MAX: Final = 64  # signs of them in one text
_CODED_AROUND: Final = 200


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
    for run in _ALNUM.findall(word):
        if len(_CODED.findall(run)) < _CODED_MIN:
            continue
        for digits in _ALNUMS:
            yield from _tried(partial(_number_of, digits=digits), run)
        yield from _tried(partial(_number_of, digits=_ALNUMS[0], base=36), run.lower())
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
    return _number_of(run, _BASE58_DIGITS)


def _number_of(run: str, digits: Mapping[str, int], base: int = 0) -> bytes:
    """The bytes of a number in a base."""
    number, base = 0, base or len(digits)
    for each in run:
        number = number * base + digits[each]
    return number.to_bytes((number.bit_length() + 7) // 8)


def _base32hex(run: str) -> bytes:
    packed = run.rstrip("=").upper()
    return base64.b32hexdecode(packed + "=" * (-len(packed) % 8))


def code_runs(text: str) -> Iterator[Decoded]:
    """What runs of codes may be."""
    sign = _CODE_SIGN.search(text)
    if sign is None and any(map(text.__contains__, _UTF8_SIGNS)):
        sign = _UTF8_SIGN.search(text)
    if sign is not None:
        for found in _CODES.finditer(text, max(0, sign.start() - _BEFORE_SIGN)):
            yield from (Decoded(made, *found.span()) for made in _spelled(found))
    if max(map(text.count, _GLUES)) >= _GLUED_MIN or max(map(text.count, _GLUE_WORDS)) >= _GLUED_MIN:
        for found in _GLUED.finditer(text):
            codes = [each.lstrip("0xXbBoO") if each[1:2].isalpha() else each for each in _CODE.findall(found[0])]
            yield from (Decoded(made, *found.span()) for base in (10, 16, 8) if (made := _characters(codes, base)))


def coded_words(text: str) -> Iterator[tuple[Decoded, int]]:
    """Words that are encoded one by one, also too short to be read alone, with those between them; and how many."""
    if len(text) > PARTED_MAX:
        return
    signs = [found.start() for found in islice(_CODED_SIGN.finditer(text), _CODED_WORDS_MAX)]
    if len(signs) < _CODED_WORDS_MIN:
        return
    behind = 0
    for at in signs:
        if at < behind:
            continue
        first, behind = max(0, at - _CODED_AROUND), at + 2 * _CODED_AROUND
        window = text[first:behind]
        words = 0

        def decoded(found: re.Match[str]) -> str:
            nonlocal words
            word = _word_in(found[0])
            words += word is not None
            return word or found[0]

        made = _CODED_WORD.sub(decoded, window)
        if words:
            yield Decoded(made, first, first + len(window)), words


def _word_in(packed: str) -> str | None:
    """The word that a word is in hexadecimal digits or base64."""
    for decode in (bytes.fromhex, _base64):
        try:
            text = decode(packed).decode()
        except ValueError:
            continue
        if (word := text.strip()) and all(each.isalpha() or each in " '’-" for each in word):
            return word
    return None


def _base64(packed: str) -> bytes:
    bare = packed.rstrip("=").replace("-", "+").replace("_", "/")
    return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)


def parts_of(text: str) -> Iterator[Decoded]:
    """What is encoded and cut into parts of one length, in one."""
    if len(text) > PARTED_MAX or len(_INSIDE_WORD.findall(text)) < _PARTS_MIN:
        return
    at = 0
    for length, group in groupby(text.split(" "), len):
        parts = [*group]
        start, at = at, at + (length + 1) * len(parts)
        if len(parts) >= _PARTS_MIN and length > 1:
            end = at + len(text[at : at + length].partition(" ")[0])
            yield Decoded(text[start:end].replace(" ", ""), start, min(end, len(text)))


def uuencoded(text: str) -> Iterator[Decoded]:
    """What uuencoded lines are."""
    if "begin " not in text:
        return
    for found in _UUENCODED.finditer(text):
        try:
            data = b"".join(map(binascii.a2b_uu, found["lines"].encode("ascii").splitlines()))
        except (binascii.Error, UnicodeEncodeError):
            continue
        if (made := readable(data)) is not None:
            yield Decoded(made, *found.span())


def lines_of(text: str, start: int, end: int) -> Iterator[Decoded]:
    """What an encoded text in several lines, which begins at the end of this word, is in one: with what stands behind
    its whole lines and without."""
    tail = _TAIL.search(text, start, end)
    found = _LINES.match(text, tail.start()) if tail is not None and _MIXED.search(tail[0]) else None
    if found is None or len(found[0]) > LENGTH_MAX:
        return
    for last in dict.fromkeys((found.end(), found.start("tail") if found["tail"] else found.end())):
        packed = re.sub(r"\s", "", text[found.start() : last])
        if last > end:
            yield Decoded(packed, found.start(), last)


def _spelled(found: re.Match[str]) -> Iterator[str]:
    """What a run may be: the same digits may be decimal, hexadecimal and octal."""
    if found["binary"]:
        digits = re.sub("[^01]", "", found[0])
        texts = [readable(int(digits, 2).to_bytes(len(digits) // 8))]
    else:
        codes = re.findall(r"[0-9a-fA-F]+", re.sub(r"0[xXbBoO](?=[0-9a-fA-F])|\\x", " ", found[0]))
        bases = (2, 10, 8, 16) if all({*each} <= {"0", "1"} for each in codes) else (10, 8, 16)
        texts = [_characters(codes, base) for base in bases]
        if codes[0].isalpha() and texts[-1] is None:
            texts.append(_characters(codes[1:], 16))  # the first is a word ("de") before them
        if all(len(each) > 2 and len(each) % 2 == 0 for each in codes[:-1]) and len(codes[-1]) % 2 == 0:
            texts.append(readable(bytes.fromhex("".join(codes))))
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
