"""The result of reading a document: its text."""

from __future__ import annotations

from typing import Final

import msgspec

from sessions.model.errors import BadInput, TooLarge

TEXT_CHARS_MAX: Final = 4_000_000


class DocumentText(msgspec.Struct, frozen=True, array_like=True):
    """The text of a document. `media_type` is what the file's content proved to be. `cut`: the text
    was cut off at `TEXT_CHARS_MAX`. Lines end with a line feed alone, and the text has no characters that a log could
    not store."""

    media_type: str
    text: str
    cut: bool = False


def unsupported_file(what: str) -> BadInput:
    return BadInput("file_type_unsupported", f"No text can be taken out of this file: {what}.")


def unreadable_file(what: str) -> BadInput:
    return BadInput("file_unreadable", f"This file cannot be read: {what}.")


def too_complex_file(what: str) -> TooLarge:
    return TooLarge("file_too_complex", f"This file cannot be read within the limits of this server: {what}.")
