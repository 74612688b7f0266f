"""Undoes what hides words from a comparison but not from a reader of the source: once, in one pass, with places kept.

HTML's character references, percent-encoding, JSON's `\\u` escapes, base64 of text, and what runs of tag characters
and variation selectors spell (`disarm`). What comes out is never longer than a few times what went in, and is not
decoded again: `%2570` becomes `%70`. Pure; does not know what is looked for.
"""

from __future__ import annotations

import binascii
import html
import re
from base64 import b64decode
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote

import disarm

BASE64_MIN: Final = 12  # characters; shorter words are text by chance
_BASE64: Final = rf"[A-Za-z0-9+/_-]{{{BASE64_MIN},}}={{0,2}}"
_FIND_BASE64: Final = re.compile(_BASE64)
_FIND_ALL: Final = re.compile(
    r"&(?:\#0{0,16}\d{1,7}|\#[xX]0{0,16}[0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});?"
    rf"|(?:%[0-9a-fA-F]{{2}})+|(?:\\u[0-9a-fA-F]{{4}})+|{_BASE64}"
)
_WHITE: Final = "\r\n\t"


class DecodedText(NamedTuple):
    """A text with its encodings undone, and where each undone piece was."""

    text: str
    firsts: list[int]  # where each undone piece begins in `text`, ascending
    behind: list[int]  # where it ends there
    spans: list[tuple[int, int]]  # where it stood in the text as it came

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Returns the smallest span of the text as it came that is known to hold [start, end)."""
        return self._place(start)[0], self._place(end - 1)[1]

    def _place(self, index: int) -> tuple[int, int]:
        piece = bisect_right(self.firsts, index) - 1
        if piece < 0:
            return index, index + 1
        if index < self.behind[piece]:
            return self.spans[piece]
        place = index - self.behind[piece] + self.spans[piece][1]
        return place, place + 1


def decode_text(text: str) -> DecodedText | None:
    """Returns a text with its encodings undone; None where it has none."""
    find = _FIND_ALL if "&" in text or "%" in text or "\\" in text else _FIND_BASE64
    pieces = [(*found.span(), plain) for found in find.finditer(text) if (plain := _decode(found[0])) is not None]
    if not text.isascii():
        pieces = sorted([*pieces, *_smuggled(text)])
    if not pieces:
        return None
    made, firsts, behind, spans = list[str](), list[int](), list[int](), list[tuple[int, int]]()
    at = length = 0
    for start, end, plain in pieces:
        if start < at:
            continue  # inside the piece before
        made += (text[at:start], plain)
        length += start - at
        firsts.append(length)
        length += len(plain)
        behind.append(length)
        spans.append((start, end))
        at = end
    return DecodedText("".join((*made, text[at:])), firsts, behind, spans)


def _decode(piece: str) -> str | None:
    """Returns what an encoded piece stands for; None where it stands for itself."""
    match piece[0]:
        case "&":
            plain = html.unescape(piece)
            return plain if plain != piece else None
        case "%":
            return unquote(piece, errors="replace")
        case "\\":
            return bytes.fromhex(piece.replace("\\u", "")).decode("utf-16-be", errors="replace")
        case _:
            return _base64_text(piece)


def _base64_text(word: str) -> str | None:
    packed = word.rstrip("=").replace("-", "+").replace("_", "/")
    packed = packed[: len(packed) - (len(packed) % 4 == 1)]
    try:
        plain = b64decode(packed + "=" * (-len(packed) % 4), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return plain if all(character.isprintable() or character in _WHITE for character in plain) else None


def _smuggled(text: str) -> Iterator[tuple[int, int, str]]:
    """Yields (start, end, text) of each run of invisible characters that spells a text."""
    data = text.encode("utf-8", "replace")  # a lone surrogate is no text to a library
    at = place = 0  # the library counts bytes
    for payload in disarm.decode_smuggled(data.decode()):
        start = place + len(data[at : payload.start].decode())
        at, place = payload.end, start + len(data[payload.start : payload.end].decode())
        if payload.text:
            yield start, place, payload.text
