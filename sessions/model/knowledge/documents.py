"""What is taken out of a document: its text, and where its pages and headings begin in it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from sessions.model.errors import BadInput, TooLarge

TEXT_CHARS_MAX: Final = 4_000_000
SECTIONS_MAX: Final = 20_000
TITLE_CHARS_MAX: Final = 200

SectionKind = Literal["page", "slide", "sheet", "heading"]


class DocumentSection(msgspec.Struct, frozen=True, array_like=True):
    """Begins at code point `start` of the text and reaches to the next one of its kind; sections of two kinds overlap
    as they do in the document. `number`: of a page, slide or sheet, from 1; of a heading its level, from 1."""

    kind: SectionKind
    start: int
    number: int
    title: str = ""


class DocumentText(msgspec.Struct, frozen=True, array_like=True):
    """`media_type` is what the document proved to be. `cut`: it goes on behind `TEXT_CHARS_MAX`. Lines end in a line
    feed alone, and there is nothing in the text that a log could not hold."""

    media_type: str
    text: str
    sections: tuple[DocumentSection, ...] = ()
    cut: bool = False

    def of_kind(self, kind: SectionKind) -> list[DocumentSection]:
        return [section for section in self.sections if section.kind == kind]


def unsupported_file(what: str) -> BadInput:
    return BadInput("file_type_unsupported", f"No text can be taken out of this file: {what}.")


def unreadable_file(what: str) -> BadInput:
    return BadInput("file_unreadable", f"This file cannot be read: {what}.")


def too_complex_file(what: str) -> TooLarge:
    return TooLarge("file_too_complex", f"This file cannot be read within the limits of this server: {what}.")
