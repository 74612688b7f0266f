"""Reads PDF by pypdf, page by page."""

from __future__ import annotations

import io
import logging
from typing import Final

from pypdf import PdfReader
from pypdf.errors import PyPdfError

from inference.documents.text_builder import TextBuilder
from sessions.model.knowledge.documents import too_complex_file, unreadable_file

PAGES_MAX: Final = 3_000
_BROKEN: Final = (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OSError)
"""Errors that the library raises for malformed documents."""

logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of every oddity


def read_pdf(content: bytes, builder: TextBuilder) -> None:
    """Reads a PDF into `builder`, without pages that cannot be read; if none can, it is refused. Raises BadInput,
    TooLarge, TextFull."""
    try:
        reader = PdfReader(io.BytesIO(content), strict=False)
        if reader.is_encrypted and not reader.decrypt(""):
            raise unreadable_file("it is locked with a password")
        count = len(reader.pages)
    except _BROKEN as exc:
        raise unreadable_file("it is a damaged PDF") from exc
    if count > PAGES_MAX:
        raise too_complex_file(f"it has {count} pages, and {PAGES_MAX} at most are read")
    read = 0
    for number in range(count):
        try:
            text = reader.pages[number].extract_text()
        except _BROKEN:
            continue
        read += 1
        builder.put(text if text.endswith("\n") else f"{text}\n")
    if count and not read:
        raise unreadable_file("it is a damaged PDF")
