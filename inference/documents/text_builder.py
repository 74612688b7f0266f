"""Gathers a document's text, within limits. Pure."""

from __future__ import annotations

import re
from typing import Final

from sessions.model.knowledge.documents import TEXT_CHARS_MAX, DocumentText

# Signs of control but tab and line feed; halves of surrogate pairs; what is no character; signs that turn the direction
# of what stands behind them around, and would make people read another text than the model.
_UNWANTED: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
_BREAKS: Final = re.compile("\r\n?|[\x85\u2028\u2029]")
_EMPTY_LINES: Final = re.compile(r"\n(?:[ \t]*\n){3,}")


class TextFull(Exception):
    """Raised when the text has reached its maximal length, so that the document is not read further."""


def clean_text(text: str) -> str:
    """Returns a text that every log can hold, with only line feeds between lines."""
    text = _BREAKS.sub("\n", text)
    return _UNWANTED.sub("", text)


class TextBuilder:
    """Collects a document's text. `put` raises TextFull at the limit; earlier text stays."""

    def __init__(self, chars_max: int = TEXT_CHARS_MAX) -> None:
        self._pieces: list[str] = []
        self._left = chars_max
        self.cut = False

    def put(self, text: str) -> None:
        text = _EMPTY_LINES.sub("\n\n\n", clean_text(text))
        if len(text) > self._left:
            text, self.cut = text[: self._left], True
        self._pieces.append(text)
        self._left -= len(text)
        if self.cut:
            raise TextFull

    def line(self, text: str) -> None:
        self.put(f"{text}\n")

    @property
    def empty(self) -> bool:
        return not any(piece.strip() for piece in self._pieces)

    def finish(self, media_type: str) -> DocumentText:
        return DocumentText(media_type, "".join(self._pieces), self.cut)
