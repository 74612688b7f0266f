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
    """A section of a document, from code point `start` of its text to the next section of its kind; sections of two
    kinds may overlap. `number`: of a page, slide or sheet, from 1; of a heading its level, from 1."""

    kind: SectionKind
    start: int
    number: int
    title: str = ""


class DocumentText(msgspec.Struct, frozen=True, array_like=True):
    """The text of a document, with its sections. `media_type` is what the file proved to be; `cut`: the document goes
    on behind `TEXT_CHARS_MAX`. Lines end in a line feed alone, and nothing is in the text that a log could not hold."""

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
